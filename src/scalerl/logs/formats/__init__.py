"""One module per format; each turns a `Source` of its kind into a `Table`."""

"""A live web page that follows run folders, studies and logs while they are written. It never writes to them."""

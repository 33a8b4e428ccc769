"""What other runs say of a curve, and fits that use it."""

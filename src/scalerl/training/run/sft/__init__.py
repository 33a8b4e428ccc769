"""Supervised fine-tuning: make a base model from demonstrations."""

"""Supervised fine-tuning: demonstrations to a base model."""

"""Lessons are data: scenarios, questions and checks played on the real engine."""

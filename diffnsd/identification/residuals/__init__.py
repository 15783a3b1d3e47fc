"""What is compared with measurements, run by run, and its linearisation."""

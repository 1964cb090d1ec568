"""What hardware and models are made of: memory, bandwidth, arithmetic, shapes. No torch."""

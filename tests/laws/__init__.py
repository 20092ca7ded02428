"""What every kernel, likelihood, prior and target must satisfy, written once."""

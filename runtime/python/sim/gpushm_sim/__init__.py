"""The broker (bin/gpushm-broker) and the simulated driver (driver-sim/) for gpushm.testing."""

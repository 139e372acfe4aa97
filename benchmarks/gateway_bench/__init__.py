"""The parts of the gateway benchmark."""

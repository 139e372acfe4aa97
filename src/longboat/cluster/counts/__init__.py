"""How many replicas each model is to have: what gateways counted, what operators asked for, what the scaler decides."""

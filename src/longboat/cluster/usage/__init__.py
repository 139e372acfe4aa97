"""What the processes of a rank do and take: read from /proc and from the GPU's driver. It starts and ends nothing."""

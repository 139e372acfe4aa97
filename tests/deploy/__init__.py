"""The chart, the images and the clouds."""

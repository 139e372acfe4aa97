"""The console: pages for people in a browser, and the documents behind them. Nothing runs while no page is open."""

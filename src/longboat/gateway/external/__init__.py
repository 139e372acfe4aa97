"""Models at addresses outside the fleet: keys, TLS, proxies, and what may be spent. It knows no request's exchange."""

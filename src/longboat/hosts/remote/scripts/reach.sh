# Opens a connection to an address; a firewall that drops packets makes it run out of time (exit status 124).
LC_ALL=C timeout "$LIMIT_S" bash -c "exec 3<>/dev/tcp/$ADDRESS/$PORT"

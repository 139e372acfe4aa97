"""Sign-in through an OpenID Connect provider: nothing runs before the first sign-in, or the first token."""

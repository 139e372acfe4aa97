# Makes a release the current one.
set -eu
ln -sfn "releases/$RELEASE" "$SOFTWARE/current.new"
mv -T "$SOFTWARE/current.new" "$SOFTWARE/current"

#!/bin/sh
# Installs what `make test` needs beyond Go, or says clearly what is missing:
# a C compiler for the race detector, Node.js 20 with npm, Chromium, PostgreSQL's
# server programs, pgbouncer and libfaketime, Ruby with Rails and puma, and the
# npm packages of client-js and e2e. Debian's packages are installed when this
# runs as root; otherwise the command to run is printed.
set -u
cd "$(dirname "$0")/.." || exit 1

missing=""
want() { # want COMMAND PACKAGE
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
want cc "gcc libc6-dev"
want chromium chromium
want node nodejs
want npm npm
want setsid util-linux
# Debian keeps PostgreSQL's server programs and pgbouncer off the PATH.
if ! command -v initdb >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
	missing="$missing postgresql"
fi
[ -x /usr/sbin/pgbouncer ] || want pgbouncer pgbouncer
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing="$missing libfaketime"
want ruby ruby
want puma puma
# Not all of Rails: what the gem and its example use.
if ! ruby -e 'require "rails"; require "action_cable"; require "active_record"; require "pg"; require "minitest"' >/dev/null 2>&1; then
	missing="$missing ruby-railties ruby-actioncable ruby-activerecord ruby-pg ruby-minitest"
fi

if [ -n "$missing" ]; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
		echo "installing Debian packages:$missing"
		export DEBIAN_FRONTEND=noninteractive
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null || {
			echo "make test: apt-get could not install:$missing (no network?)" >&2
			exit 1
		}
	else
		echo "make test needs these Debian packages:$missing" >&2
		echo "  sudo apt-get install --no-install-recommends$missing" >&2
		exit 1
	fi
fi

version=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
if [ "$version" -lt 20 ]; then
	echo "make test needs Node.js 20 or newer for the JavaScript tests; this is version $version." >&2
	echo "Debian 13 and newer have it as nodejs; elsewhere take it from nodejs.org or your version manager." >&2
	exit 1
fi

# npm ci only when the lock file has changed since the last time.
for dir in client-js e2e; do
	stamp=$dir/node_modules/.installed
	if [ ! -f "$stamp" ] || ! cmp -s "$dir/package-lock.json" "$stamp"; then
		echo "installing npm packages in $dir"
		(cd "$dir" && npm ci --no-audit --no-fund --loglevel=error >/dev/null) || {
			echo "make test: npm could not install the packages of $dir (no network?)" >&2
			exit 1
		}
		cp "$dir/package-lock.json" "$stamp"
	fi
done

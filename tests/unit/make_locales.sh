#!/bin/sh
# Compiles locales for the tests: make_locales.sh FOLDER NAME... writes FOLDER/NAME.UTF-8, which
# programs find with LOCPATH=FOLDER. Skipped (77) without the sources, Debian's package "locales".
set -eu
folder=$1
shift
mkdir -p "$folder"
for name; do
    if ! command -v localedef >/dev/null || [ ! -e "/usr/share/i18n/locales/$name" ]; then
        echo "skipped: no localedef or no /usr/share/i18n/locales/$name (package locales)"
        exit 77
    fi
    [ -d "$folder/$name.UTF-8" ] || {
        localedef --no-archive -i "$name" -f UTF-8 "$folder/$name.UTF-8.$$"
        mv "$folder/$name.UTF-8.$$" "$folder/$name.UTF-8"
    }
done

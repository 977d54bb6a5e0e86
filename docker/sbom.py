"""Writes a CycloneDX list of what is in an image.

usage: sbom.py IMAGE VERSION [BUILT-IN ...] <PACKAGES >FILE.cdx.json
PACKAGES: lines of `dpkg-query -W -f '${Package}\\t${Version}\\t${Architecture}\\n'`; BUILT-IN:
package URLs of what was compiled in.
"""

import json
import platform
import sys
from urllib.parse import quote, unquote


def component(url):
    name, _, version = url.partition("?")[0].rpartition("/")[2].partition("@")
    return {"type": "library", "bom-ref": url, "name": unquote(name),
            "version": unquote(version), "purl": url}


def main():
    image, version, *urls = sys.argv[1:]
    system = platform.freedesktop_os_release()
    for line in sys.stdin:
        name, package_version, architecture = line.split()
        urls.append(f"pkg:deb/{system['ID']}/{quote(name)}@{quote(package_version)}"
                    f"?arch={architecture}&distro={system['ID']}-{system['VERSION_ID']}")
    json.dump({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "container", "name": f"gpushm/{image}",
                                   "version": version}},
        "components": [component(url) for url in sorted(set(urls))]}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()

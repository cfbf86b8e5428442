"""Geo: a site's coordinates from its name: a cloud region, a city, or coordinates inside the name.

    where("eu-central-1b") == where("Frankfurt") == (50.1, 8.7)
    where("lab@48.1,11.6") == (48.1, 11.6)

Degrees north and east, to about ten kilometres: enough for a dot on a world map.
"""

from __future__ import annotations

import re
from typing import Final

CITIES: Final = {
    "amsterdam": (52.4, 4.9), "ashburn": (39.0, -77.5), "bahrain": (26.1, 50.5), "berlin": (52.5, 13.4),
    "boardman": (45.8, -119.7), "calgary": (51.0, -114.1), "cape town": (-33.9, 18.4), "cardiff": (51.5, -3.2),
    "changhua": (24.1, 120.5), "chennai": (13.1, 80.3), "chicago": (41.9, -87.6), "columbus": (40.0, -83.0),
    "council bluffs": (41.3, -95.9), "dallas": (32.8, -96.8), "dammam": (26.4, 50.1), "delhi": (28.6, 77.2),
    "doha": (25.3, 51.5), "dubai": (25.2, 55.3), "dublin": (53.3, -6.3), "eemshaven": (53.4, 6.8),
    "frankfurt": (50.1, 8.7), "gavle": (60.7, 17.1), "hamina": (60.6, 27.2), "hong kong": (22.3, 114.2),
    "hyderabad": (17.4, 78.5), "jakarta": (-6.2, 106.8), "johannesburg": (-26.2, 28.0), "las vegas": (36.2, -115.1),
    "london": (51.5, -0.1), "los angeles": (34.1, -118.2), "madrid": (40.4, -3.7), "melbourne": (-37.8, 145.0),
    "milan": (45.5, 9.2), "moncks corner": (33.2, -80.0), "montreal": (45.5, -73.6), "mumbai": (19.1, 72.9),
    "new york": (40.7, -74.0), "osaka": (34.7, 135.5), "oslo": (59.9, 10.8), "paris": (48.9, 2.4),
    "phoenix": (33.4, -112.1), "pune": (18.5, 73.9), "quebec": (46.8, -71.2), "quincy": (47.2, -119.9),
    "salt lake city": (40.8, -111.9), "san antonio": (29.4, -98.5), "san jose": (37.3, -121.9),
    "santiago": (-33.4, -70.7), "sao paulo": (-23.6, -46.6), "seoul": (37.6, 127.0), "singapore": (1.4, 103.8),
    "st ghislain": (50.5, 3.8), "stockholm": (59.3, 18.1), "sydney": (-33.9, 151.2), "tel aviv": (32.1, 34.8),
    "the dalles": (45.6, -121.2), "tokyo": (35.7, 139.7), "toronto": (43.7, -79.4), "turin": (45.1, 7.7),
    "warsaw": (52.2, 21.0), "zaragoza": (41.6, -0.9), "zurich": (47.4, 8.5),
}  # fmt: skip
# Region names, one cloud provider per paragraph; the last paragraph has short names in common use.
REGIONS: Final = {
    "us-east-1": "ashburn", "us-east-2": "columbus", "us-west-1": "san jose", "us-west-2": "boardman",
    "af-south-1": "cape town", "ap-east-1": "hong kong", "ap-south-1": "mumbai", "ap-south-2": "hyderabad",
    "ap-southeast-1": "singapore", "ap-southeast-2": "sydney", "ap-southeast-3": "jakarta",
    "ap-southeast-4": "melbourne", "ap-northeast-1": "tokyo", "ap-northeast-2": "seoul", "ap-northeast-3": "osaka",
    "ca-central-1": "montreal", "ca-west-1": "calgary", "eu-central-1": "frankfurt", "eu-central-2": "zurich",
    "eu-west-1": "dublin", "eu-west-2": "london", "eu-west-3": "paris", "eu-south-1": "milan",
    "eu-south-2": "zaragoza", "eu-north-1": "stockholm", "il-central-1": "tel aviv", "me-south-1": "bahrain",
    "me-central-1": "dubai", "sa-east-1": "sao paulo",

    "us-central1": "council bluffs", "us-east1": "moncks corner", "us-east4": "ashburn", "us-east5": "columbus",
    "us-south1": "dallas", "us-west1": "the dalles", "us-west2": "los angeles", "us-west3": "salt lake city",
    "us-west4": "las vegas", "northamerica-northeast1": "montreal", "northamerica-northeast2": "toronto",
    "southamerica-east1": "sao paulo", "southamerica-west1": "santiago", "europe-west1": "st ghislain",
    "europe-west2": "london", "europe-west3": "frankfurt", "europe-west4": "eemshaven", "europe-west6": "zurich",
    "europe-west8": "milan", "europe-west9": "paris", "europe-west10": "berlin", "europe-west12": "turin",
    "europe-southwest1": "madrid", "europe-central2": "warsaw", "europe-north1": "hamina", "asia-east1": "changhua",
    "asia-east2": "hong kong", "asia-northeast1": "tokyo", "asia-northeast2": "osaka", "asia-northeast3": "seoul",
    "asia-south1": "mumbai", "asia-south2": "delhi", "asia-southeast1": "singapore", "asia-southeast2": "jakarta",
    "australia-southeast1": "sydney", "australia-southeast2": "melbourne", "me-west1": "tel aviv",
    "me-central1": "doha", "me-central2": "dammam", "africa-south1": "johannesburg",

    "eastus": "ashburn", "eastus2": "ashburn", "centralus": "council bluffs", "northcentralus": "chicago",
    "southcentralus": "san antonio", "westus": "san jose", "westus2": "quincy", "westus3": "phoenix",
    "canadacentral": "toronto", "canadaeast": "quebec", "brazilsouth": "sao paulo", "northeurope": "dublin",
    "westeurope": "amsterdam", "uksouth": "london", "ukwest": "cardiff", "francecentral": "paris",
    "germanywestcentral": "frankfurt", "switzerlandnorth": "zurich", "norwayeast": "oslo", "swedencentral": "gavle",
    "polandcentral": "warsaw", "italynorth": "milan", "spaincentral": "madrid", "uaenorth": "dubai",
    "qatarcentral": "doha", "israelcentral": "tel aviv", "southafricanorth": "johannesburg", "centralindia": "pune",
    "southindia": "chennai", "westindia": "mumbai", "eastasia": "hong kong", "southeastasia": "singapore",
    "japaneast": "tokyo", "japanwest": "osaka", "koreacentral": "seoul", "australiaeast": "sydney",
    "australiasoutheast": "melbourne",

    "virginia": "ashburn", "ohio": "columbus", "california": "san jose", "oregon": "boardman", "ireland": "dublin",
    "iowa": "council bluffs", "belgium": "st ghislain", "netherlands": "eemshaven", "taiwan": "changhua",
}  # fmt: skip
_GIVEN: Final = re.compile(r"@\s*(-?\d{1,2}(?:\.\d+)?)\s*,\s*(-?\d{1,3}(?:\.\d+)?)\s*$")
# "eu-central-1b" and "europe-west3-b" are zones of a region.
_ZONE: Final = re.compile(r"(?<=\d)-?[a-f]$")


def where(name: str) -> tuple[float, float] | None:
    """Latitude and longitude; None if the name is not known."""
    given = _GIVEN.search(name)
    if given:
        latitude, longitude = float(given[1]), float(given[2])
        return (latitude, longitude) if abs(latitude) <= 90 and abs(longitude) <= 180 else None
    plain = " ".join(name.lower().replace("_", "-").split())
    plain = _ZONE.sub("", plain)
    city = REGIONS.get(plain, plain.replace("-", " ") if plain not in CITIES else plain)
    return CITIES.get(city)

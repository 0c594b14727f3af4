"""The CLIP of image/clip; outside judges use the same class."""

from quintet.shared.adopt.clip import AdoptedClip

Model = AdoptedClip

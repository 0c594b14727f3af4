"""What the server that children are forked from imports before the first of them."""

from campaign.children import import_everything

import_everything()

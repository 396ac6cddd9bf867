"""What the device backend is made of: graphs by bucket, plans in integers, fused modules."""

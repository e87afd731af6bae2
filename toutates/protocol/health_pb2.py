"""Messages of health.proto. Written by proto/generate.py; edit the .proto file instead."""

from toutates.protocol import pool

DESCRIPTOR = pool.POOL.AddSerializedFile(
    b'\n\x0chealth.proto\x12\x0egrpc.health.v1"%\n\x12HealthCheckRequest\x12\x0f\n\x07service\x18\x01 \x01(\t"\xa9'
    b'\x01\n\x13HealthCheckResponse\x12A\n\x06status\x18\x01 \x01(\x0e21.grpc.health.v1.HealthCheckResponse.Serving'
    b'Status"O\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVING'
    b'\x10\x02\x12\x13\n\x0fSERVICE_UNKNOWN\x10\x032\xae\x01\n\x06Health\x12P\n\x05Check\x12".grpc.health.v1.Health'
    b'CheckRequest\x1a#.grpc.health.v1.HealthCheckResponse\x12R\n\x05Watch\x12".grpc.health.v1.HealthCheckRequest'
    b'\x1a#.grpc.health.v1.HealthCheckResponse0\x01b\x06proto3'
)
pool.build(DESCRIPTOR, globals())

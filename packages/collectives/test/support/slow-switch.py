"""Joins network namespaces by a slow way: slow-switch.py DELAY_MS NAMESPACE...

Host i gets the address 10.77.0.(i + 1) on a card eth0. Every packet reaches its host that much
later. It says 'ready' when the cards are there, and runs until its input ends.
"""

import fcntl
import heapq
import os
import selectors
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001

delay = float(sys.argv[1]) / 1000
cards = []
for i, namespace in enumerate(sys.argv[2:]):
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"slow{i}x{os.getpid()}"
    fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_NO_PI))
    commands = f"addr add 10.77.0.{i + 1}/24 dev eth0\nlink set eth0 up\nlink set lo up\n"
    subprocess.run(["ip", "link", "set", name, "netns", namespace, "name", "eth0"], check=True)
    subprocess.run(["ip", "-n", namespace, "-batch", "-"], input=commands, text=True, check=True)
    cards.append(card)

selector = selectors.DefaultSelector()
for card in cards:
    selector.register(card, selectors.EVENT_READ)
selector.register(sys.stdin, selectors.EVENT_READ)
print("ready", flush=True)

under_way = []
number = 0
while True:
    wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
    for key, _ in selector.select(wait):
        if key.fileobj is sys.stdin:
            sys.exit()
        packet = os.read(key.fd, 65536)
        host = packet[19] - 1 if packet[0] >> 4 == 4 else -1
        if 0 <= host < len(cards):
            number += 1
            heapq.heappush(under_way, (time.monotonic() + delay, number, host, packet))
    while under_way and under_way[0][0] <= time.monotonic():
        _, _, host, packet = heapq.heappop(under_way)
        try:
            os.write(cards[host], packet)
        except BlockingIOError:
            pass

// The yardstick for ws: what plain TCP sockets of node:net carry in the same pattern (direct
// reduce-scatter and all-gather, sums by the wasm reducer), without framing, checks or failures in
// between.
import { once } from 'node:events';
import net from 'node:net';
import { RankSum } from '../../../packages/dtypes/dist/index.js';

export async function open({ rank, worldSize, exchange }) {
  const links = await connectAll(rank, worldSize, exchange);
  return new NetEngine(rank, worldSize, links, await RankSum.create());
}

async function connectAll(rank, worldSize, exchange) {
  const links = [];
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = new Promise((resolve) => {
    let awaited = worldSize - 1 - rank;
    if (awaited === 0) {
      resolve();
    }
    server.on('connection', async (socket) => {
      const [first] = await once(socket, 'data');
      links[first[0]] = new Link(socket);
      if (--awaited === 0) {
        resolve();
      }
    });
  });
  const ports = await exchange(server.address().port);
  for (let peer = 0; peer < rank; peer++) {
    const socket = net.connect(ports[peer], '127.0.0.1');
    await once(socket, 'connect');
    socket.write(Uint8Array.of(rank));
    links[peer] = new Link(socket);
  }
  await accepted;
  server.close();
  await exchange(); // no bytes may come before the hello is read
  return links;
}

/**
 * A connection to one peer. Both sides know what comes, so bytes fill the posted buffers in order.
 */
class Link {
  #socket;
  #posted = [];

  constructor(socket) {
    this.#socket = socket.setNoDelay(true);
    socket.pause();
    socket.on('data', (chunk) => this.#take(chunk));
    socket.pause();
  }

  send(bytes) {
    return new Promise((resolve) => this.#socket.write(bytes, resolve));
  }

  receive(bytes) {
    if (bytes.byteLength === 0) {
      return Promise.resolve();
    }
    return new Promise((resolve) => {
      this.#posted.push({ bytes, offset: 0, resolve });
      if (this.#posted.length === 1) {
        this.#socket.resume();
      }
    });
  }

  close() {
    this.#socket.destroy();
  }

  #take(chunk) {
    let rest = chunk;
    while (rest.length > 0) {
      const target = this.#posted[0];
      if (target === undefined) {
        this.#socket.pause();
        this.#socket.unshift(rest);
        return;
      }
      const part = rest.subarray(0, target.bytes.byteLength - target.offset);
      target.bytes.set(part, target.offset);
      target.offset += part.length;
      rest = rest.subarray(part.length);
      if (target.offset === target.bytes.byteLength) {
        this.#posted.shift();
        target.resolve();
      }
    }
    if (this.#posted.length === 0) {
      this.#socket.pause();
    }
  }
}

class NetEngine {
  name = `node:net of Node ${process.versions.node}`;
  #links;
  #reducer;
  #scratch = new Uint8Array(0);

  constructor(rank, worldSize, links, reducer) {
    this.rank = rank;
    this.worldSize = worldSize;
    this.#links = links;
    this.#reducer = reducer;
  }

  allocate(byteLength) {
    return new Uint8Array(byteLength);
  }

  release() {}

  async barrier() {
    await this.allGather(new Uint8Array(1), new Uint8Array(this.worldSize));
  }

  async allGather(input, output) {
    const { byteLength } = input;
    const bounds = Array.from({ length: this.worldSize + 1 }, (_, r) => r * byteLength);
    const own = output.subarray(bounds[this.rank], bounds[this.rank + 1]);
    const done = this.#gather(input, output, bounds);
    own.set(input);
    await done;
  }

  async reduceScatter(input, output) {
    const { byteLength } = output;
    const bounds = Array.from({ length: this.worldSize + 1 }, (_, r) => r * byteLength);
    await this.#scatter(input, output, bounds);
  }

  async allReduce(bytes) {
    const elements = bytes.byteLength / 4;
    const bounds = Array.from(
      { length: this.worldSize + 1 },
      (_, r) => Math.floor((r * elements) / this.worldSize) * 4,
    );
    const own = bytes.subarray(bounds[this.rank], bounds[this.rank + 1]);
    await this.#scatter(bytes, own, bounds);
    await this.#gather(own, bytes, bounds);
  }

  async broadcast(bytes) {
    if (this.rank === 0) {
      await Promise.all(this.#peers().map((p) => this.#links[p].send(bytes)));
    } else {
      await this.#links[0].receive(bytes);
    }
  }

  async sendRecv(data, buffer) {
    const { rank, worldSize } = this;
    await Promise.all([
      this.#links[(rank + worldSize - 1) % worldSize].receive(buffer),
      this.#links[(rank + 1) % worldSize].send(data),
    ]);
  }

  async close() {
    for (const peer of this.#peers()) {
      this.#links[peer].close();
    }
  }

  #peers() {
    const { rank, worldSize } = this;
    return Array.from({ length: worldSize - 1 }, (_, i) => (rank + 1 + i) % worldSize);
  }

  async #gather(own, output, bounds) {
    await Promise.all(
      this.#peers().flatMap((peer) => [
        this.#links[peer].receive(output.subarray(bounds[peer], bounds[peer + 1])),
        this.#links[peer].send(own),
      ]),
    );
  }

  async #scatter(input, output, bounds) {
    const { rank, worldSize } = this;
    const { byteLength } = output;
    if (this.#scratch.byteLength < byteLength * (worldSize - 1)) {
      this.#scratch = new Uint8Array(byteLength * (worldSize - 1));
    }
    const parts = [];
    parts[rank] = input.subarray(bounds[rank], bounds[rank + 1]);
    for (const [i, peer] of this.#peers().entries()) {
      parts[peer] = this.#scratch.subarray(i * byteLength, (i + 1) * byteLength);
    }
    await Promise.all(
      this.#peers().flatMap((peer) => [
        this.#links[peer].receive(parts[peer]),
        this.#links[peer].send(input.subarray(bounds[peer], bounds[peer + 1])),
      ]),
    );
    await this.#reducer.reduce(parts, output, { dtype: 'f32', op: 'sum' });
  }
}

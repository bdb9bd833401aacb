// The yardstick for shm: threads that copy from each other's memory and wait for each other by
// Atomics.waitAsync, as a program must whose event loop goes on. There are no framing, checks or
// failures in between.

const WORD_BYTES = 64;

/** Runs in the thread that starts the ranks, and returns what each rank is given. */
export function shareAmong(worldSize, { maxBytes }) {
  // The two buffers of a rank are at the same places within its own part of the memory.
  const partBytes = 2 * maxBytes;
  const memory = new SharedArrayBuffer(2 * WORD_BYTES + worldSize * partBytes);
  return () => ({ data: { memory, partBytes }, transferList: [] });
}

export async function open({ rank, worldSize, job }) {
  return new AtomicsEngine(rank, worldSize, job.shared);
}

class AtomicsEngine {
  name = `Atomics and copies of Node ${process.versions.node}`;
  #memory;
  #partBytes;
  #hasFirst = false;
  #numCalls = 0;

  constructor(rank, worldSize, { memory, partBytes }) {
    this.rank = rank;
    this.worldSize = worldSize;
    this.#memory = memory;
    this.#partBytes = partBytes;
  }

  /**
   * The first call gets the first half of the rank's part. Later calls share the second half, so
   * only one of these buffers can be in use.
   */
  allocate(byteLength) {
    const offset = this.#hasFirst ? this.#partBytes / 2 : 0;
    this.#hasFirst = true;
    return new Uint8Array(this.#memory, this.#startOf(this.rank) + offset, byteLength);
  }

  release() {}

  /** The rank that comes last wakes all others at once. */
  async barrier() {
    const arrived = new Int32Array(this.#memory, 0, 1);
    const released = new Int32Array(this.#memory, WORD_BYTES, 1);
    const call = ++this.#numCalls;
    if (Atomics.add(arrived, 0, 1) + 1 === call * this.worldSize) {
      Atomics.store(released, 0, call);
      Atomics.notify(released, 0);
      return;
    }
    while (Atomics.load(released, 0) < call) {
      const { async, value } = Atomics.waitAsync(released, 0, call - 1);
      if (async) {
        await value;
      }
    }
  }

  async allGather(input, output) {
    const { byteLength } = input;
    const placeOf = (rank) => output.subarray(rank * byteLength, (rank + 1) * byteLength);
    placeOf(this.rank).set(input);
    await this.barrier();
    for (const peer of this.#peers()) {
      placeOf(peer).set(this.#twin(input, peer));
    }
    await this.barrier();
  }

  async broadcast(bytes) {
    await this.barrier();
    if (this.rank !== 0) {
      bytes.set(this.#twin(bytes, 0));
    }
    await this.barrier();
  }

  async sendRecv(data, buffer) {
    await this.barrier();
    buffer.set(this.#twin(data, (this.rank + this.worldSize - 1) % this.worldSize));
    await this.barrier();
  }

  async close() {}

  #peers() {
    const { rank, worldSize } = this;
    return Array.from({ length: worldSize - 1 }, (_, i) => (rank + 1 + i) % worldSize);
  }

  #startOf(rank) {
    return 2 * WORD_BYTES + rank * this.#partBytes;
  }

  /** The peer's buffer that is at the same place of its part as `bytes` is of this rank's. */
  #twin(bytes, peer) {
    const offset = bytes.byteOffset - this.#startOf(this.rank) + this.#startOf(peer);
    return new Uint8Array(this.#memory, offset, bytes.byteLength);
  }
}

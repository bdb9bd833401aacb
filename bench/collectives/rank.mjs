// One rank of ours, or of plain sockets. It joins by an adapter and then does what the coordinator
// asks, with one line of JSON for each request: prepare, check, time, probe, memory. It runs as a
// process or in a worker.
//
// An adapter (adapters/*.mjs) exports `open({ rank, worldSize, exchange, job })`. It resolves to an
// engine { name, rank, worldSize, allocate(byteLength), release(bytes), barrier(), allGather(input,
// output), reduceScatter(input, output), allReduce(bytes), broadcast(bytes), sendRecv(out, in),
// close() }. `exchange(value)` resolves to the values of all ranks.
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { callOf } from './calls.mjs';
import { watchEventLoop } from './event-loop-probe.mjs';
import { measureMemory } from './memory-probe.mjs';

/**
 * @param {{ rank: number, worldSize: number, control: string, adapter: string, job: object }} spec
 */
export async function serveRank({ rank, worldSize, control, adapter, job }) {
  const socket = net.connect(control);
  await once(socket, 'connect');
  const say = (message) => socket.write(`${JSON.stringify(message)}\n`);
  const exchanged = [];
  const exchange = (value) => {
    say({ rank, exchange: value ?? null });
    return new Promise((resolve) => exchanged.push(resolve));
  };
  say({ rank, hello: true });
  let served;
  createInterface({ input: socket }).on('line', async (line) => {
    const request = JSON.parse(line);
    if (request.exchanged !== undefined) {
      exchanged.shift()(request.exchanged);
      return;
    }
    try {
      say({ rank, id: request.id, ...(await served[request.do](request)) });
    } catch (error) {
      say({ rank, id: request.id, error: String(error?.message ?? error).split('\n')[0] });
    }
  });
  const { open } = await import(`./adapters/${adapter}.mjs`);
  const engine = await open({ rank, worldSize, exchange, job });
  served = new Served(engine, job.maxBytes);
  say({ rank, ready: engine.name });
  await once(socket, 'close');
  process.exit(1); // the coordinator has ended
}

class Served {
  constructor(engine, maxBytes) {
    this.engine = engine;
    this.first = engine.allocate(maxBytes);
    this.second = engine.allocate(4);
    this.call = undefined;
  }

  prepare({ operation, whole, beside }) {
    const { engine } = this;
    if (this.second.byteLength < beside) {
      engine.release(this.second);
      this.second = engine.allocate(beside);
    }
    this.call = callOf(engine, {
      operation,
      whole: this.first.subarray(0, whole),
      beside: this.second.subarray(0, beside),
    });
    return {};
  }

  /** Makes one call on fresh values, and checks its result. */
  async check() {
    this.call.fill();
    await this.engine.barrier();
    await this.call.run();
    this.call.expect();
    return {};
  }

  /**
   * Checks the result of the last timed call. Where the operation works in place, repeated calls
   * have changed its input, so it is called once more on fresh values.
   */
  async recheck() {
    if (this.call.isInPlace) {
      return this.check();
    }
    this.call.expect();
    return {};
  }

  /** Milliseconds per call, by the clock and by processor time (of the whole process). */
  async time({ repetitions, warmUps }) {
    for (let i = 0; i < warmUps; i++) {
      await this.call.run();
    }
    await this.engine.barrier();
    const cpu = process.cpuUsage();
    const start = performance.now();
    for (let i = 0; i < repetitions; i++) {
      await this.call.run();
    }
    const ms = (performance.now() - start) / repetitions;
    const { user, system } = process.cpuUsage(cpu);
    return { ms, cpuMs: (user + system) / 1000 / repetitions };
  }

  /**
   * The longest time for which this rank's event loop was held up, measured apart from timed runs.
   */
  async probe({ repetitions }) {
    await this.engine.barrier();
    const watch = watchEventLoop();
    for (let i = 0; i < repetitions; i++) {
      await this.call.run();
    }
    return watch.stop();
  }

  async memory({ repetitions }) {
    return measureMemory(
      repetitions,
      () => this.call.run(),
      () => this.engine.barrier(),
    );
  }

  async close() {
    setTimeout(() => process.exit(0), 2000).unref();
    await this.engine.close();
    setTimeout(() => process.exit(0), 50);
    return {};
  }
}

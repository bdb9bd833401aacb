// This is a rank as a process of its own. It joins when it is told, keeps calls in flight on
// several groups, misbehaves when it is told, and reports how its calls ended. fault-job.ts bundles
// and starts it.

import { CollectiveError, type ProcessGroup } from '@shardweave/collectives';
import { connectWs } from '@shardweave/collectives/ws';
import type { EndedCall, RankCommand, RankReport } from './fault-messages.js';

/** The pause between calls of a chain, since many jobs run side by side on few cores. */
const PAUSE_MS = 15;

const SUM = { dtype: 'f32', op: 'max' } as const;

class Rank {
  #group: ProcessGroup | undefined;
  #oddity: 'operation' | 'dtype' | 'size' | undefined;
  #wantsStop = false;
  #numRounds = 0;

  async obey(command: RankCommand): Promise<void> {
    switch (command.type) {
      case 'join':
        await this.#join(command);
        return;
      case 'disagree':
        this.#oddity = command.about;
        return;
      case 'abort':
        this.#group!.abort(command.reason);
        return;
      case 'abort and exit': {
        const group = this.#group!;
        for (let to = 0; to < group.worldSize; to++) {
          if (to !== group.rank) {
            group.send(new Uint8Array(8 * 2 ** 20), { to, channel: 77 }).catch(() => {});
          }
        }
        group.abort(command.reason);
        process.exit(1);
        return;
      }
      case 'leave':
        await this.#group!.close();
        return;
      case 'compute': {
        const before = this.#numRounds;
        // The thread waits without a turn of the event loop, and without using a core that other
        // tests need.
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, command.ms);
        say({ type: 'computed', numRounds: before });
        return;
      }
      case 'stop':
        this.#wantsStop = true;
        return;
      case 'exit':
        process.disconnect(); // Nothing else may keep the process alive.
        return;
      case 'routed':
        routes.get(command.id)?.(command.address);
        return;
    }
  }

  async #join(command: Extract<RankCommand, { type: 'join' }>): Promise<void> {
    const { rank, isRouted, ...options } = command;
    this.#oddity = undefined;
    this.#wantsStop = false;
    try {
      this.#group = await connectWs({
        ...options,
        rank,
        onListen: (port) => say({ type: 'listening', port }),
        ...(isRouted ? { route: askRoute } : {}),
      });
    } catch (error) {
      say({ type: 'unjoined', message: String(error) });
      return;
    }
    const group = this.#group;
    const second = await group.split(0);
    say({ type: 'joined' });
    const ended = await Promise.all([
      this.#chain('allGather', () => this.#gather(group)),
      this.#chain('allReduce', () => this.#reduce(second)),
      this.#chain('recv', () => this.#receive(group)),
    ]);
    const calls = ended.filter((call) => call !== undefined);
    const later = calls.length === 0 ? [] : await this.#later(group, second);
    await group.close();
    say({ type: 'ended', calls, later, numRounds: this.#numRounds });
  }

  /** Repeats a call until it returns true for its last one, or rejects. */
  async #chain(name: string, call: () => Promise<boolean>): Promise<EndedCall | undefined> {
    try {
      while (!(await call())) {
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      }
      return undefined;
    } catch (error) {
      return describe(name, error);
    }
  }

  async #gather(group: ProcessGroup): Promise<boolean> {
    const oddity = this.#oddity;
    if (oddity === 'operation') {
      await group.barrier();
      return false;
    }
    const byteLength = oddity === 'size' ? 90_000 : 100_000;
    const input = new Uint8Array(byteLength).fill(this.#wantsStop ? 1 : 0);
    const output = new Uint8Array(byteLength * group.worldSize);
    await group.allGather(input, output, { dtype: oddity === 'dtype' ? 'bf16' : 'f32' });
    this.#numRounds++;
    return output.some((byte) => byte === 1);
  }

  async #reduce(group: ProcessGroup): Promise<boolean> {
    const input = new Float32Array(50_000).fill(this.#wantsStop ? 1 : 0);
    const output = new Float32Array(50_000);
    await group.allReduce(new Uint8Array(input.buffer), new Uint8Array(output.buffer), SUM);
    if (output[0] === 1) {
      const to = (group.rank + group.worldSize - 1) % group.worldSize;
      await this.#group!.send(new Uint8Array(1), { to, channel: 9 });
    }
    return output[0] === 1;
  }

  /** Stays pending until the very end, since no rank sends before. */
  async #receive(group: ProcessGroup): Promise<boolean> {
    await group.recv(new Uint8Array(1), { from: (group.rank + 1) % group.worldSize, channel: 9 });
    return true;
  }

  async #later(...groups: readonly ProcessGroup[]): Promise<EndedCall[]> {
    const calls = groups.flatMap((group) => [
      ['barrier', group.barrier()] as const,
      ['broadcast', group.broadcast(new Uint8Array(4), { root: 0 })] as const,
    ]);
    const ended = calls.map(([name, call]) =>
      call.then(
        () => ({ call: name, code: 'resolved', originRank: -1, message: '', atMs: Date.now() }),
        (error) => describe(name, error),
      ),
    );
    return Promise.all(ended);
  }
}

function describe(call: string, error: unknown): EndedCall {
  const atMs = Date.now();
  if (error instanceof CollectiveError) {
    const { code, originRank, message } = error;
    return { call, code, originRank, message, atMs };
  }
  return { call, code: 'not typed', originRank: -1, message: String(error), atMs };
}

const routes = new Map<number, (address: { host: string; port: number }) => void>();

/** Asks the test for the address that this rank is to dial instead. */
function askRoute(target: number | 'rendezvous', address: { host: string; port: number }) {
  const id = routes.size;
  return new Promise<{ host: string; port: number }>((resolve) => {
    routes.set(id, resolve);
    say({ type: 'route', id, target, address });
  });
}

function say(report: RankReport): void {
  process.send?.(report);
}

const rank = new Rank();
process.on('message', (command: RankCommand) => void rank.obey(command));

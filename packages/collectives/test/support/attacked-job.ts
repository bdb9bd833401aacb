// This job of rank processes is attacked by tests while it forms and while it steps.

import { type ChildProcess, fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import type { Costs, RankOrder, RankWord } from './attacked-messages.js';
import { bundleProgram } from './bundle-program.js';

export interface AttackedJobOptions {
  /** The hard limit of `ulimit -n` of each rank. Default: this process's. */
  readonly openFiles?: number;
  /** Default: 'auto', which is none here. */
  readonly encryption?: 'auto' | 'always';
  /** Default: 3. */
  readonly numRanks?: number;
}

/** The arguments by which a shell starts Node under that limit. */
const limitedTo = (openFiles: number) => [
  '-c',
  `ulimit -n ${openFiles} && exec "$0" "$@"`,
  process.execPath,
];

export class AttackedJob {
  readonly secret = randomBytes(16).toString('hex');
  readonly #children: readonly ChildProcess[];
  readonly #words: RankWord[][];
  readonly encryption: 'auto' | 'always';
  port = 0;

  private constructor(
    program: string,
    { openFiles, encryption = 'auto', numRanks = 3 }: AttackedJobOptions,
  ) {
    this.encryption = encryption;
    this.#children = Array.from({ length: numRanks }, () =>
      openFiles === undefined
        ? fork(program)
        : fork(program, { execPath: 'sh', execArgv: limitedTo(openFiles) }),
    );
    this.#words = this.#children.map(() => []);
    for (const [rank, child] of this.#children.entries()) {
      child.on('message', (word: RankWord) => {
        this.#words[rank]!.push(word);
      });
    }
  }

  /** Resolves when rank 0 listens for the others, which have not come yet. */
  static async begin(program: string, options: AttackedJobOptions = {}): Promise<AttackedJob> {
    const job = new AttackedJob(program, options);
    await Promise.all(job.#children.map((_, rank) => job.#hears(rank, 'ready')));
    job.#letJoin(0);
    const { port } = await job.#hears(0, 'listening');
    job.port = port;
    return job;
  }

  /**
   * Lets the others come. Resolves with the milliseconds until all have joined, and with rank 0's
   * costs.
   */
  async form(): Promise<{ readonly formMs: number; readonly costs: Costs }> {
    const start = performance.now();
    for (let rank = 1; rank < this.#children.length; rank++) {
      this.#letJoin(rank);
    }
    const formed = this.#children.map((_, rank) => this.#hears(rank, 'formed'));
    const [costs] = await Promise.all(formed);
    return { formMs: performance.now() - start, costs: costs! };
  }

  /**
   * Resolves with rank 0's costs since the last call, and the number of steps it has done in all.
   */
  costs(): Promise<Extract<RankWord, { readonly type: 'costs' }>> {
    this.#say(0, { type: 'costs' });
    return this.#hears(0, 'costs');
  }

  /** Resolves when all ranks have ended without an error. */
  async end(): Promise<void> {
    this.#say(0, { type: 'stop' });
    await Promise.all(this.#children.map((_, rank) => this.#hears(rank, 'ended')));
  }

  /** The pids of its ranks. */
  get pids(): readonly number[] {
    return this.#children.map(({ pid }) => pid!);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(
      this.#children.map(async (child) => {
        if (child.exitCode === null && child.signalCode === null) {
          child.kill('SIGKILL');
          await once(child, 'exit');
        }
      }),
    );
  }

  #letJoin(rank: number): void {
    const { secret, port, encryption } = this;
    const worldSize = this.#children.length;
    this.#say(rank, { type: 'join', rank, worldSize, secret, port, encryption });
  }

  #say(rank: number, order: RankOrder): void {
    this.#children[rank]!.send(order);
  }

  async #hears<T extends RankWord['type']>(rank: number, type: T) {
    const words = this.#words[rank]!;
    for (;;) {
      const at = words.findIndex((word) => word.type === type || word.type === 'unjoined');
      if (at >= 0) {
        const [word] = words.splice(at, 1);
        if (word!.type === 'unjoined') {
          throw new Error(word!.message);
        }
        return word as Extract<RankWord, { readonly type: T }>;
      }
      const child = this.#children[rank]!;
      if (child.exitCode !== null) {
        throw new Error(`rank ${rank} exited, code ${child.exitCode}`);
      }
      const over = new AbortController();
      const events = ['message', 'exit'].map((name) => once(child, name, over));
      await Promise.race(events).finally(() => over.abort());
      await Promise.allSettled(events);
    }
  }
}

/** Bundles the program of a rank, which lasts until `remove` is called. */
export async function bundleAttackedRank() {
  const folder = newFolder();
  const program = join(folder, 'attacked-rank.mjs');
  await bundleProgram(new URL('attacked-rank.ts', import.meta.url), program);
  return { program, remove: () => rm(folder, { recursive: true, force: true }) };
}

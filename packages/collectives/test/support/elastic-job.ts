// An elastic job of real processes, which tests kill, stop and start.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { JoinElasticOptions, ServeElasticOptions } from '@shardweave/collectives/elastic';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './bundle-program.js';
import { StepStates } from './counting-member.js';
import type { ElasticWord } from './elastic-member.js';
import type { ElasticOrder } from './elastic-process.js';

const SECRET = 'made by the launcher';

/** The longest wait for a word of a process, on the slowest machine. */
const LIMIT_MS = 50_000;

type WordOf<Type extends ElasticWord['type']> = Extract<ElasticWord, { readonly type: Type }>;

/** A process or a thread of a job, by what it has said. */
export class ElasticSpeaker {
  readonly words: ElasticWord[] = [];
  readonly #waiting = new Set<() => void>();

  protected heard(word: ElasticWord): void {
    this.words.push(word);
    for (const look of this.#waiting) {
      look();
    }
  }

  /** The id that it got last. */
  async lastJoined(): Promise<number> {
    await this.hears('joined');
    return this.words.findLast((word): word is WordOf<'joined'> => word.type === 'joined')!.id;
  }

  /** Resolves with its first word of a kind for which `isWanted` holds. */
  hears<Type extends ElasticWord['type']>(
    type: Type,
    isWanted: (word: WordOf<Type>) => boolean = () => true,
  ): Promise<WordOf<Type>> {
    return new Promise((resolve, reject) => {
      const isIt = (word: ElasticWord): word is WordOf<Type> =>
        word.type === type && isWanted(word as WordOf<Type>);
      const finish = () => {
        clearTimeout(timer);
        this.#waiting.delete(look);
      };
      const look = () => {
        const found = this.words.find(isIt);
        if (found !== undefined) {
          finish();
          resolve(found);
        }
      };
      const timer = setTimeout(() => {
        finish();
        const last = this.words.slice(-5).map((word) => JSON.stringify(word));
        reject(new Error(`no ${type} within ${LIMIT_MS} ms, after\n${last.join('\n')}`));
      }, LIMIT_MS);
      this.#waiting.add(look);
      look();
    });
  }
}

/** One process, and what it has said. */
export class ElasticProcess extends ElasticSpeaker {
  readonly #child: ChildProcess;

  constructor(program: string) {
    super();
    this.#child = fork(program);
    this.#child.on('message', (word: ElasticWord) => this.heard(word));
  }

  order(order: ElasticOrder): void {
    this.#child.send(order);
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** Resolves with its exit code when it has ended by itself. */
  async ended(): Promise<number | null> {
    if (this.#child.exitCode === null) {
      await once(this.#child, 'exit');
    }
    return this.#child.exitCode;
  }
}

export class ElasticJob {
  readonly #program: string;
  readonly #processes: ElasticProcess[] = [];
  readonly options: Partial<JoinElasticOptions>;
  port = 0;

  private constructor(program: string, options: Partial<JoinElasticOptions>) {
    this.#program = program;
    this.options = options;
  }

  /** Bundles the program, for which no process runs yet. */
  static async create(options: Partial<JoinElasticOptions> = {}): Promise<ElasticJob> {
    const program = join(newFolder(), 'elastic-process.mjs');
    await bundleProgram(new URL('elastic-process.ts', import.meta.url), program);
    return new ElasticJob(program, options);
  }

  /** Starts a coordinator, at the port of the one before. */
  async serve(options: Partial<ServeElasticOptions> = {}): Promise<ElasticProcess> {
    const child = await this.#start();
    const port = this.port;
    child.order({
      type: 'serve',
      options: { min: 1, max: 8, secret: SECRET, port, settleMs: 300, ...options },
    });
    this.port = (await child.hears('listening')).port;
    return child;
  }

  /** Starts members, and resolves when the job knows them. */
  async join(count: number): Promise<readonly ElasticProcess[]> {
    const children = await Promise.all(Array.from({ length: count }, () => this.#start()));
    for (const child of children) {
      this.order(child);
    }
    await Promise.all(children.map((child) => child.hears('joined')));
    return children;
  }

  /** Lets a process join, perhaps once more. */
  order(child: ElasticProcess): void {
    const rendezvous = { host: '127.0.0.1', port: this.port };
    const options = { rendezvous, max: 8, secret: SECRET, ...this.options };
    child.order({ type: 'join', options });
  }

  end(): void {
    for (const child of this.#processes) {
      child.signal('SIGKILL');
    }
  }

  async #start(): Promise<ElasticProcess> {
    const child = new ElasticProcess(this.#program);
    this.#processes.push(child);
    await child.hears('ready');
    return child;
  }
}

/** Resolves, with the time, when all of these and nobody else have done a step in one epoch. */
export async function atWork(processes: readonly ElasticSpeaker[]): Promise<number> {
  const joined = await Promise.all(processes.map((child) => child.lastJoined()));
  const wanted = joined.toSorted((a, b) => a - b).join();
  const times = await Promise.all(
    processes.map(async (child) => {
      const { number } = await child.hears('epoch', ({ ids }) => ids.join() === wanted);
      return (await child.hears('step', ({ epoch }) => epoch === number)).atMs;
    }),
  );
  return Math.max(...times);
}

/** Throws where a step has two states, as those told who did it, or is missing. */
export function checkStates(processes: readonly ElasticSpeaker[]): void {
  const states = new StepStates();
  for (const word of processes.flatMap(({ words }) => words)) {
    if (word.type === 'step') {
      states.add(word.step, word.state);
    }
  }
  states.check();
}

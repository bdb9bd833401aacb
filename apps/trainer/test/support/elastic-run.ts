// An elastic job of real processes, which is disturbed from outside: its ranks are killed, stopped
// and woken up, others join it and leave.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import type { RunRecord, StepLine } from '../../src/output/run-records.js';
import { childrenOf } from './killed-run.js';
import { ROOT } from './run-flags.js';
import { runLine, tinyFlags } from './tiny-run.js';

const SECRET = 'the secret of an elastic run';

/** Far more than any change takes on a busy machine. */
const LIMIT_MS = 60_000;

type EventOf<Type> = Extract<RunRecord, { readonly type: Type }>;
type Members = EventOf<'members'>;

/** A command with all that it prints. */
export class Spoken implements AsyncDisposable {
  readonly child: ChildProcess;
  said = '';
  readonly ended: Promise<number | null>;

  constructor(script: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    this.child = spawn(process.execPath, [script, ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        ...process.env,
        SHARDWEAVE_JOB_SECRET: SECRET,
        NODE_PATH: `${ROOT}packages/collectives/node_modules`,
        ...env,
      },
    });
    for (const stream of [this.child.stdout!, this.child.stderr!]) {
      stream.on('data', (chunk: Buffer) => {
        this.said += chunk.toString();
      });
    }
    this.ended = once(this.child, 'close').then(([code]) => code as number | null);
  }

  /** Ends it, where a test has failed before. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.child.kill('SIGKILL');
    await this.ended;
  }

  /** Waits until `isThere` holds, and fails with what was said where the command ends before. */
  async until(isThere: () => boolean): Promise<void> {
    const endMs = performance.now() + LIMIT_MS;
    while (!isThere()) {
      if (performance.now() > endMs) {
        throw new Error(`it did not come so far: ${this.said}`);
      }
      if (this.child.exitCode !== null || this.child.signalCode !== null) {
        throw new Error(`it ended too early: ${this.said}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

export class ElasticRun extends Spoken {
  readonly out: string;
  readonly #script: string;

  constructor(script: string, flags: string, out: string) {
    super(script, ['train', '--elastic', '--out', out, ...flags.split(' ')]);
    this.#script = script;
    this.out = out;
  }

  /** The ranks that the command has started and that live, in the order of their starts. */
  get ranks(): readonly number[] {
    return childrenOf(this.child.pid!);
  }

  get steps(): readonly StepLine[] {
    return linesOf(join(this.out, 'metrics.jsonl')) as StepLine[];
  }

  get changes(): readonly Members[] {
    return this.#events('members');
  }

  get numLost(): number {
    return this.changes.reduce((sum, { lost }) => sum + lost, 0);
  }

  /** Adds a rank, whose command is given. */
  async join(flags = '', env: NodeJS.ProcessEnv = {}): Promise<Spoken> {
    await this.until(() => this.said.includes('join with'));
    const [, address] = /shardweave join (\S+)/.exec(this.said)!;
    return new Spoken(this.#script, ['join', address!, ...flags.split(' ').filter(Boolean)], env);
  }

  /** Waits until so many have done a step: a job begins with those that are there first. */
  async untilAtWork(ranks: number): Promise<void> {
    await this.until(() => new Set(this.#events('rank').map(({ rank }) => rank)).size === ranks);
  }

  /** Waits for a step at which there are so many ranks. */
  async untilRanks(ranks: number): Promise<void> {
    await this.until(() => this.changes.at(-1)?.ranks === ranks);
    const { step } = this.changes.at(-1)!;
    await this.untilStep(step + 2);
  }

  async untilStep(step: number): Promise<void> {
    await this.until(() => (this.steps.at(-1)?.step ?? 0) >= step);
  }

  #events<Type extends 'members' | 'rank'>(type: Type): EventOf<Type>[] {
    const events = linesOf(join(this.out, 'events.jsonl')) as RunRecord[];
    return events.filter((event): event is EventOf<Type> => event.type === type);
  }
}

/** Returns the flags of adapters beside a tiny base that has weights, and a folder for runs. */
export async function overBase(): Promise<{ readonly flags: string; readonly folder: string }> {
  const folder = newFolder();
  const base = join(folder, 'base');
  const tiny = tinyFlags(folder);
  await runLine(`${tiny} --steps 1 --strategy single --out ${base}`);
  const rest =
    '--schedule constant --warmup 0 --precision bf16 --gradient-groups 4 --lora-rank 2 --valid-fraction 0.2 --eval-every 10 --eval-batches 1';
  return { flags: `${tiny.replace(`--model ${folder}`, `--model ${base}`)} ${rest}`, folder };
}

/** Returns the weights of the adapters that a run has left. */
export function adapterOf(run: string): Buffer {
  return readFileSync(join(run, 'adapter/adapter_model.safetensors'));
}

function linesOf(path: string): readonly unknown[] {
  const lines = existsSync(path) ? readFileSync(path, 'utf8').split('\n') : [];
  return lines.slice(0, -1).map((line) => JSON.parse(line) as unknown); // the last may be cut
}

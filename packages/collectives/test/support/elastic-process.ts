// A process of an elastic job: a member that does steps until it is told to leave, or the job's
// coordinator. Its state is a number that each step changes, so all members of an epoch have the
// same at a step, however they came to it. elastic-job.ts bundles and starts it.

import {
  type Epoch,
  EpochOverError,
  type JoinElasticOptions,
  joinElastic,
  type Member,
  MembershipError,
  type ServeElasticOptions,
  serveElastic,
} from '@shardweave/collectives/elastic';

export type ElasticOrder =
  | { readonly type: 'join'; readonly options: JoinElasticOptions }
  | { readonly type: 'serve'; readonly options: ServeElasticOptions }
  | { readonly type: 'leave' };

/** What a process tells, and when, by the clock that all processes of a machine share. */
export type ElasticWord = { readonly atMs: number } & (
  | { readonly type: 'ready' | 'left' }
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'joined'; readonly id: number }
  | { readonly type: 'epoch'; readonly number: number; readonly ids: readonly number[] }
  | { readonly type: 'step'; readonly epoch: number; readonly step: number; readonly state: number }
  | { readonly type: 'over'; readonly lost: readonly number[] }
  | { readonly type: 'failed'; readonly kind: string; readonly message: string }
);

type Unstamped<T> = T extends unknown ? Omit<T, 'atMs'> : never;

function say(word: Unstamped<ElasticWord>): void {
  process.send!({ ...word, atMs: Date.now() });
}

/** The pause between two steps, since many processes share few cores. */
const PAUSE_MS = 5;

let wantsToLeave = false;

class Worker {
  readonly #member: Member;
  #step = 0;
  #state = 1;

  constructor(member: Member) {
    this.#member = member;
  }

  async run(): Promise<void> {
    let epoch: Epoch | undefined;
    while (!wantsToLeave) {
      try {
        if (epoch === undefined || (await this.#doStep(epoch))) {
          epoch = await this.#member.reform({ step: this.#step, note: String(this.#state) });
          say({ type: 'epoch', number: epoch.number, ids: epoch.members.map(({ id }) => id) });
          await this.#copyState(epoch);
        }
      } catch (error) {
        if (!(error instanceof EpochOverError)) {
          throw error;
        }
        say({ type: 'over', lost: error.lost.map((rank) => epoch!.members[rank]!.id) });
        epoch = undefined;
      }
    }
    await this.#member.leave();
    say({ type: 'left' });
    process.disconnect(); // nothing else may keep the process alive
  }

  /** Whether all of the epoch agree to stop at this edge. */
  async #doStep({ number, group }: Epoch): Promise<boolean> {
    const own = Int32Array.of(this.#member.isChangeDue ? 1 : 0, this.#step);
    const most = new Int32Array(2);
    const bytes = new Uint8Array(most.buffer);
    await group.allReduce(new Uint8Array(own.buffer), bytes, { dtype: 'i32', op: 'max' });
    if (most[1] !== this.#step) {
      throw new Error(`step ${this.#step} meets step ${most[1]}`);
    }
    this.#state = (this.#state * 31 + this.#step) % 65_521;
    this.#step++;
    say({ type: 'step', epoch: number, step: this.#step, state: this.#state });
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    return most[0] === 1;
  }

  async #copyState({ group, source, step }: Epoch): Promise<void> {
    const state = Int32Array.of(this.#state);
    await group.broadcast(new Uint8Array(state.buffer), { root: source });
    this.#state = state[0]!;
    this.#step = step;
  }
}

async function join(options: JoinElasticOptions): Promise<void> {
  try {
    const member = await joinElastic(options);
    say({ type: 'joined', id: member.id });
    await new Worker(member).run();
  } catch (error) {
    const kind = error instanceof MembershipError ? error.kind : 'error';
    say({ type: 'failed', kind, message: String(error) });
  }
}

process.on('message', (order: ElasticOrder) => {
  if (order.type === 'join') {
    void join(order.options);
  } else if (order.type === 'leave') {
    wantsToLeave = true;
  } else {
    serveElastic(order.options).then(
      ({ port }) => say({ type: 'listening', port }),
      (error: unknown) => say({ type: 'failed', kind: 'error', message: String(error) }),
    );
  }
});
say({ type: 'ready' });

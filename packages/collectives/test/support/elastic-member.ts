// A counting member that tells what happens to it, in a process or a thread of its own.

import { type Epoch, type Member, MembershipError } from '@shardweave/collectives/elastic';
import { CountingMember } from './counting-member.js';

/** What a member or a coordinator tells, and when, by the clock that a machine has. */
export type ElasticWord = { readonly atMs: number } & (
  | { readonly type: 'ready' | 'left' }
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'joined'; readonly id: number }
  | { readonly type: 'epoch'; readonly number: number; readonly ids: readonly number[] }
  | { readonly type: 'step'; readonly epoch: number; readonly step: number; readonly state: number }
  | { readonly type: 'over'; readonly lost: readonly number[] }
  | { readonly type: 'failed'; readonly kind: string; readonly message: string }
);

export type Unstamped<T> = T extends unknown ? Omit<T, 'atMs'> : never;

/** The pause between two steps, since many share few cores. */
const PAUSE_MS = 5;

export class ElasticCounting {
  readonly #member: Member;
  readonly #say: (word: Unstamped<ElasticWord>) => void;
  readonly #onEpoch: (epoch: Epoch) => void;
  #wantsToLeave = false;

  constructor(
    member: Member,
    say: (word: Unstamped<ElasticWord>) => void,
    onEpoch: (epoch: Epoch) => void = () => {},
  ) {
    this.#member = member;
    this.#say = say;
    this.#onEpoch = onEpoch;
  }

  /** Leaves after the present step. */
  leave(): void {
    this.#wantsToLeave = true;
  }

  /** Rejects with MembershipError where it is no member any more. */
  async run(): Promise<void> {
    const say = this.#say;
    say({ type: 'joined', id: this.#member.id });
    const counting = new CountingMember(this.#member, {
      begun: (epoch) => {
        const { number, members } = epoch;
        this.#onEpoch(epoch);
        say({ type: 'epoch', number, ids: members.map(({ id }) => id) });
      },
      done: ({ number: epoch }, step, state) => say({ type: 'step', epoch, step, state }),
      over: (lost) => say({ type: 'over', lost }),
      pause: async () => {
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
        counting.isOver = this.#wantsToLeave;
      },
    });
    await counting.run();
    await this.#member.leave();
    say({ type: 'left' });
  }
}

export function failedWord(error: unknown): Unstamped<ElasticWord> {
  const kind = error instanceof MembershipError ? error.kind : 'error';
  return { type: 'failed', kind, message: String(error) };
}

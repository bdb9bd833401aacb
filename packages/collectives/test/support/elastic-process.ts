// A process of an elastic job: a member that does steps until it is told to leave, or the job's
// coordinator. elastic-job.ts bundles and starts it.

import {
  type JoinElasticOptions,
  joinElastic,
  type Member,
  MembershipError,
  type ServeElasticOptions,
  serveElastic,
} from '@shardweave/collectives/elastic';
import { CountingMember } from './counting-member.js';

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

async function work(member: Member): Promise<void> {
  const counting = new CountingMember(member, {
    begun: ({ number, members }) => {
      say({ type: 'epoch', number, ids: members.map(({ id }) => id) });
    },
    done: ({ number: epoch }, step, state) => say({ type: 'step', epoch, step, state }),
    over: (lost) => say({ type: 'over', lost }),
    pause: async () => {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      counting.isOver = wantsToLeave;
    },
  });
  await counting.run();
  await member.leave();
  say({ type: 'left' });
  process.disconnect(); // nothing else may keep the process alive
}

async function join(options: JoinElasticOptions): Promise<void> {
  try {
    const member = await joinElastic(options);
    say({ type: 'joined', id: member.id });
    await work(member);
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

// Runs a job whose ranks may be lost, leave and come: each rank that the command starts is a
// process, and others join from elsewhere; or all are threads of the command. The command
// coordinates, and is no rank itself. What it hears of a step twice it tells once.

import { randomBytes } from 'node:crypto';
import {
  type CoordinatorChange,
  type Departure,
  serveElastic,
} from '@shardweave/collectives/elastic';
import { UsageError } from '../errors.js';
import type { MembersTold, RankEvent } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';
import { aboutOf } from './elastic-about.js';
import { type ElasticHall, openThreads } from './elastic-hall.js';
import { type RankEnd, rootCause } from './rank-failure.js';
import { type RunProcessesOptions, startProcess } from './run-processes.js';
import { DONE_MS, deferred, endAll, type RankHost, STOP_MS, watchRank } from './watch-ranks.js';

/** The secret by which a rank of another terminal or machine joins a job. */
export const SECRET_VARIABLE = 'SHARDWEAVE_JOB_SECRET';

const LOOPBACK = '127.0.0.1';
/** The least length of a secret, which nobody should guess. */
const LEAST_SECRET = 16;

export interface RunElasticOptions extends RunProcessesOptions {
  /** Called with what a person should know besides. */
  readonly onNote?: ((text: string) => void) | undefined;
}

/**
 * Resolves when all steps are done. Rejects with the error of a rank that can't be used for
 * anything else, with that of the last one that was left, or with the signal's reason.
 */
export async function runElastic(config: PreparedRun, options: RunElasticOptions): Promise<void> {
  options.signal.throwIfAborted();
  const ranks = new ElasticRanks(config, options);
  const open = config.transport === 'shm' ? openThreads : openProcesses;
  const hall = await open(config, options, (change) => ranks.onChange(change));
  let why = 'the command that led it has ended';
  try {
    await ranks.run(hall);
    why = 'it is done';
  } finally {
    await ranks.end();
    await hall.close(why);
  }
}

async function openProcesses(
  config: PreparedRun,
  { entry, onNote }: RunElasticOptions,
  onChange: (change: CoordinatorChange) => void,
): Promise<ElasticHall> {
  const max = config.maxRanks!;
  const [host, port] = addressOf(config.listen);
  const known = process.env[SECRET_VARIABLE] || undefined;
  const secret = known ?? randomBytes(16).toString('hex');
  if (secret.length < LEAST_SECRET) {
    throw new UsageError(
      `${SECRET_VARIABLE}: expected at least ${LEAST_SECRET} characters, got ${secret.length}. Leave it out, and the job makes one.`,
    );
  }
  const server = await serveElastic({
    ...{ min: config.minRanks!, max, secret, address: host, port },
    about: aboutOf(config),
    onChange,
  }).catch((cause: Error) => {
    const why = withoutRank(cause.message).replace(/ Take one.*$/, '');
    throw new UsageError(
      `--listen ${host}${port === 0 ? '' : `:${port}`}: ${why} Give an address of this machine, and a port that is free.`,
      { cause },
    );
  });
  const how = known === undefined ? `${SECRET_VARIABLE}=${secret} ` : '';
  onNote?.(`join with  ${how}shardweave join ${host}:${server.port}`);
  const place = { host, port: server.port, secret, max };
  return {
    start: (localRank, isFirst, listener) =>
      startProcess(
        { entry, rank: localRank, config, place: { ...place, localRank, isFirst } },
        listener,
      ),
    close: (why) => server.close(why),
  };
}

/** What a joiner says, without the rank that it does not have. */
export function withoutRank(message: string): string {
  return message.replace(/^(rank \S+ )?join: /, '');
}

/** The host and port of `--listen`. */
export function addressOf(listen = LOOPBACK): readonly [host: string, port: number] {
  const [, host, port] = /^(.*?)(?::(\d+))?$/.exec(listen)!;
  return [host!, Number(port ?? 0)];
}

/** The ranks that the command has started. */
class ElasticRanks {
  readonly #config: PreparedRun;
  readonly #options: RunElasticOptions;
  readonly #progress = { step: 0, isEnding: false };
  /** Those that live, with their ids in the job. */
  readonly #hosts = new Map<RankHost, number | undefined>();
  readonly #changes = new MemberChanges();
  /** The rank that saves if the job ends because too few are left. */
  #keeper: RankHost | undefined;
  #numRestarts = 0;

  constructor(config: PreparedRun, options: RunElasticOptions) {
    this.#config = config;
    this.#options = options;
  }

  async run(hall: ElasticHall): Promise<void> {
    const { signal, wrapUp } = this.#options;
    const { ranks } = this.#config;
    const stopped = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
    });
    const onWrapUp = () => this.#wrapUp();
    wrapUp?.addEventListener('abort', onWrapUp, { once: true });
    const fatal = deferred<RankEnd>();
    const ends = Array.from({ length: ranks }, (_, rank) => this.#keep(rank, hall, fatal.resolve));
    try {
      const outcome = await Promise.race([Promise.all(ends), fatal.promise, stopped]);
      const failed = Array.isArray(outcome) ? outcome.filter((end) => end !== 'done') : [outcome];
      if (!Array.isArray(outcome) || failed.length === ranks) {
        throw rootCause(failed, ranks);
      }
    } finally {
      wrapUp?.removeEventListener('abort', onWrapUp);
    }
  }

  /** Ends those that are left. */
  async end(): Promise<void> {
    this.#progress.isEnding = true;
    const hosts = [...this.#hosts.keys()];
    for (const host of hosts) {
      host.tell({ type: 'stop' });
    }
    await endAll(hosts, STOP_MS);
  }

  /** Tells of other ranks, and ends those of its own that the job goes on without. */
  onChange(change: CoordinatorChange): void {
    const { minRanks = 1 } = this.#config;
    const told = this.#changes.add(change);
    const left = this.#changes.numLeft(change);
    if (change.phase === 'gathering' && change.gone.length > 0 && left < minRanks && left > 0) {
      this.#chooseKeeper(change);
      this.#options.onNote?.(
        `${left === 1 ? '1 rank is' : `${left} ranks are`} left, and --min-ranks is ${minRanks}: waiting 30 s for others to join`,
      );
    }
    if (told !== undefined) {
      this.#options.onEvent({ type: 'members', ...told });
    }
    const gone = new Set(change.gone.filter(({ how }) => how !== 'left').map(({ id }) => id));
    for (const [host, id] of this.#hosts) {
      if (id !== undefined && gone.has(id)) {
        host.kill(); // it may only be stopped, and must write nothing when it wakes up
      }
    }
  }

  /** Lets one of those that are left, and have the state, save if no others come. */
  #chooseKeeper({ members, gone }: CoordinatorChange): void {
    const isLeft = (id: number | undefined) =>
      id !== undefined && members.includes(id) && !gone.some((departure) => departure.id === id);
    const left = [...this.#hosts].filter(([, id]) => isLeft(id)).map(([host]) => host);
    if (this.#keeper === undefined || !left.includes(this.#keeper)) {
      this.#keeper = left[0];
      this.#keeper?.tell({ type: 'keep' });
    }
  }

  /** Keeps a rank there: it is started again where it is lost, as often as it may be. */
  async #keep(
    rank: number,
    hall: ElasticHall,
    onFatal: (end: RankEnd) => void,
  ): Promise<RankEnd | 'done'> {
    for (let isFirst = true; ; isFirst = false) {
      let host: RankHost | undefined;
      const watched = watchRank(
        rank,
        (_, listener) => {
          host = hall.start(rank, isFirst, listener);
          return host;
        },
        { progress: this.#progress, onEvent: (event) => this.#onEvent(host!, event) },
      );
      this.#hosts.set(watched.host, undefined);
      if (this.#options.wrapUp?.aborted) {
        watched.host.tell({ type: 'wrap-up' });
      }
      const end = await Promise.race([watched.done.then(() => 'done' as const), watched.failed]);
      if (end === 'done') {
        await endAll([watched.host], DONE_MS);
      }
      this.#hosts.delete(watched.host);
      if (end === 'done' || this.#progress.isEnding) {
        return end;
      }
      if (end.failure?.kind === 'usage' || end.failure?.kind === 'diverged') {
        onFatal(end); // the others would come to the same
        return end;
      }
      watched.host.kill();
      if (this.#numRestarts === this.#config.maxRestarts) {
        return end;
      }
      this.#numRestarts += 1;
    }
  }

  #wrapUp(): void {
    for (const host of this.#hosts.keys()) {
      host.tell({ type: 'wrap-up' });
    }
  }

  #onEvent(host: RankHost, event: RankEvent): void {
    if (event.type === 'member') {
      this.#hosts.set(host, event.id);
    } else if (event.type !== 'step') {
      this.#options.onEvent(event);
    } else if (event.metrics.step > this.#progress.step) {
      this.#progress.step = event.metrics.step;
      this.#options.onEvent(event);
    }
  }
}

/** What is told of each epoch but the first one: who is new in it, and who has gone. */
class MemberChanges {
  readonly #gone = new Map<number, Departure>();
  #epoch = 0;
  #members: readonly number[] = [];

  /** How many are there of an epoch that is over, and of those who wait. */
  numLeft({ members, waiting }: CoordinatorChange): number {
    return [...members, ...waiting].filter((id) => !this.#gone.has(id)).length;
  }

  /** What is to be told; undefined while no other epoch runs, and for the first one. */
  add({ phase, epoch, members, step, gone }: CoordinatorChange): MembersTold | undefined {
    for (const departure of gone) {
      this.#gone.set(departure.id, departure);
    }
    if (phase !== 'running' || epoch === this.#epoch) {
      return undefined;
    }
    const before = this.#members;
    const isFirst = this.#epoch === 0;
    this.#members = members;
    this.#epoch = epoch;
    const departures = before
      .filter((id) => !members.includes(id))
      .map((id) => this.#gone.get(id) ?? { how: 'lost', reason: 'it has gone' });
    const lost = departures.filter(({ how }) => how !== 'left');
    const told = {
      ...{ epoch, ranks: members.length, step: step ?? 0 },
      came: members.filter((id) => !before.includes(id)).length,
      left: departures.length - lost.length,
      lost: lost.length,
      reasons: lost.map(({ reason }) => reason),
    };
    return isFirst ? undefined : told;
  }
}

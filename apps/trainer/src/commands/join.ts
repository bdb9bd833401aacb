// The command `join`: takes part in an elastic job that another command leads, until it is done.

import { resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { JoinError } from '@shardweave/collectives';
import { joinElastic, type Member, MembershipError } from '@shardweave/collectives/elastic';
import { absoluteData } from '../data/data-parts.js';
import { headOf } from '../data/known-labels.js';
import { prepareTokens } from '../data/prepare-tokens.js';
import { cacheDirectory, TokenCache } from '../data/token-cache.js';
import { SignalError, TrainerError, UsageError } from '../errors.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { data, devices, file, filledText, threads } from '../flags/flag-kinds.js';
import { resolveDevices } from '../launch/adapter-probe.js';
import { readAbout } from '../launch/elastic-about.js';
import { addressOf, SECRET_VARIABLE, withoutRank } from '../launch/run-elastic.js';
import { DeviceHost } from '../rank/device-host.js';
import { runMember } from '../rank/elastic/run-member.js';
import type { ModelSource, PreparedRun, RunConfig } from '../run-config.js';
import type { CommandContext } from './cli-command.js';
import { defineCommand, QUIET } from './define-command.js';
import { noteJoined } from './joined.js';

/** The time for the first answer of a job. */
const FIRST_MS = 30_000;
/** The time for which a rank that was cut off tries to come again. */
const AGAIN_MS = 10 * 60_000;
/** The longest pause before a rank comes again that was turned away as often as that. */
const LONGEST_PAUSE_S = 300;
/** The ends of a part in a job after which a rank may come again. */
const COMES_AGAIN = ['fenced', 'alone'];

const FLAGS = {
  address: needed(filledText, ['<HOST:PORT>', 'where the job is led, as it has printed']),
  data: flag(data, undefined, [
    '--data <FILE|DIR|hf:ORG/NAME,...>',
    'where the data is here (default: where it is there)',
  ]),
  valid: flag(data, undefined, [
    '--valid <FILE|DIR|hf:ORG/NAME,...>',
    'where the data that is evaluated is here (default: where it is there)',
  ]),
  model: flag(filledText, undefined, [
    '--model <DIR|ORG/NAME>',
    'where the model is here (default: where it is there)',
  ]),
  device: flag(devices, ['auto'] as const, ['--device <auto|webgpu|cpu>', 'its device']),
  threads: flag(threads, undefined, [
    '--threads <N>',
    'of its cpu device (default: as many as a rank has there)',
  ]),
  cache: flag(file, undefined, ['--cache <DIR>', 'where tokens are kept']),
  quiet: QUIET,
};

type Flags = ValuesOf<typeof FLAGS>;

/** The command `join`. */
export const join = defineCommand({
  name: 'join',
  description: `Adds a rank to a job of train --elastic. It copies the state of the others, computes its part of each step, and leaves when all are done; Ctrl-C or the command leave makes it leave before, and the job goes on. Flags, model and data have to be those of the job, which are compared by hashes. The secret of the job is in ${SECRET_VARIABLE}.`,
  flags: FLAGS,
  model: 'weights',
  examples: [
    { line: 'join 192.168.1.5:29500', says: 'with data and model where they are there' },
    { line: 'join 192.168.1.5:29500 --data my.txt', says: 'with the data in another place' },
  ],
  run,
});

async function run(flags: Flags, context: CommandContext): Promise<number> {
  const { env, out } = context;
  const [host, port] = addressOf(flags.address);
  const secret = env[SECRET_VARIABLE];
  if (port === 0) {
    throw new UsageError(
      `join: expected HOST:PORT, got ${flags.address}. Give what the job has printed.`,
    );
  }
  if (!secret) {
    throw new UsageError(
      `join: the secret of the job is not given. Set ${SECRET_VARIABLE} as the job has printed it.`,
    );
  }
  const interrupt = context.listen();
  let isMember = false;
  interrupt.lead(() => isMember); // the first wish lets a member end its step
  const leave = () => interrupt.ask(new SignalError('SIGTERM', 'the command leave'));
  await using _noted = await noteJoined(flags.address, env, leave);
  await using devices = new DeviceHost();
  const say = (text: string) => void (flags.quiet || out.write(`${text}\n`));
  const options = { rendezvous: { host, port }, secret };
  let numInVain = 0;
  for (let joinTimeoutMs = FIRST_MS; ; joinTimeoutMs = AGAIN_MS) {
    say(`Connecting to ${host}:${port}, for at most ${joinTimeoutMs / 1000} s.`);
    const joining = joinElastic({ ...options, joinTimeoutMs }).catch(explain);
    const member = await orAborted(joining, interrupt.signal);
    isMember = true;
    say('Connected. This rank takes part from the next change on, when there is a place for it.');
    try {
      const config = await configOf(member, flags, context);
      const reached = await runMember(member, {
        ...{ config, devices, localRank: 0, emit: () => {} },
        signal: interrupt.signal,
        wrapUp: interrupt.wrapUp,
        onEpoch: ({ group, members, step }) => {
          numInVain = 0;
          say(`rank ${group.rank} of ${members.length}, from step ${step + 1} on`);
        },
      });
      const left = interrupt.asked
        ? 'This rank has left; the job goes on.'
        : 'The job was stopped.';
      say(reached === undefined ? left : `The job is done after step ${reached.step}.`);
      return 0;
    } catch (error) {
      isMember = false;
      const isCutOff = error instanceof MembershipError && COMES_AGAIN.includes(error.kind);
      if (!isCutOff || interrupt.asked) {
        return explain(error);
      }
      if (error.reason.includes('ECONNREFUSED')) {
        throw new TrainerError(
          `join: the command that led the job has ended (${error.reason}). Its --resume auto goes on from its newest save.`,
        );
      }
      // It was stopped or cut off, as by a lid that was closed.
      const pauseS = pauseAfter(numInVain);
      const when = pauseS === 0 ? '' : ` in ${pauseS} s`;
      say(`The job goes on without this rank (${error.reason}). Joining again${when}.`);
      await delay(1000 * pauseS, undefined, { signal: interrupt.signal }).catch(() =>
        interrupt.signal.throwIfAborted(),
      );
      numInVain += 1;
    }
  }
}

/**
 * The seconds before a rank comes again. The others stop for each try, and for some seconds where
 * it has no path to them.
 * @param numInVain how often it was turned away since it last was part of the job
 */
export function pauseAfter(numInVain: number): number {
  const doubled = 10 << Math.min(numInVain - 1, 9);
  return numInVain === 0 ? 0 : Math.min(doubled, LONGEST_PAUSE_S);
}

/** Rejects with the signal's reason as soon as that is aborted. */
async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted();
  work.catch(() => undefined);
  const aborted = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  return Promise.race([work, aborted]);
}

/** @throws {TrainerError} for what only the other end can change */
function explain(error: unknown): never {
  if (error instanceof JoinError) {
    const hint =
      'Look whether the job runs, and at the address and the secret that it has printed.';
    throw new TrainerError(`join: ${withoutRank(error.message)} ${hint}`, { cause: error });
  }
  throw error instanceof MembershipError
    ? new TrainerError(`join: ${error.message}`, { cause: error })
    : error;
}

/** The run of a job, with data, model and device as they are here. */
async function configOf(
  { about }: Member,
  flags: Flags,
  { entry, env }: CommandContext,
): Promise<PreparedRun> {
  if (about === undefined) {
    throw new UsageError(
      'join: the job does not tell what it computes. Is it one of train --elastic?',
    );
  }
  const theirs = readAbout(about);
  const { data: given, valid, threads: own, model } = flags;
  const here: RunConfig = {
    ...theirs,
    device: await resolveDevices(flags.device, entry),
    threads: own ?? theirs.threads,
    data: given === undefined ? theirs.data : absoluteData(given),
    valid: valid === undefined ? theirs.valid : absoluteData(valid),
    model: model === undefined ? theirs.model : modelAt(model, theirs),
    cache: cacheDirectory(flags.cache, env),
  };
  await using cache = await TokenCache.open(here.cache);
  const tokens = await prepareTokens(here, { entry, cache });
  return { ...here, tokens, head: await headOf(here, tokens) };
}

/** @throws {UsageError} where the job's model has no place of its own */
function modelAt(path: string, { model }: RunConfig): ModelSource {
  if (model.kind === 'preset') {
    throw new UsageError(
      `join: --model ${path}, but the job has the preset ${model.name}. Leave it out.`,
    );
  }
  return { ...model, path: resolve(path) };
}

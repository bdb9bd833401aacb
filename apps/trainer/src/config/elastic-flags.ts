// What --elastic means for the other flags: a job whose ranks may change has bits that do not
// depend on them, and saves to go on from.

import { UsageError } from '../errors.js';
import { type Flags, isAdapted } from '../flags/train-flags.js';
import { isHeldByAll, type ModelSource } from '../run-config.js';

/** The most ranks, and so the groups of a step, without --max-ranks and --gradient-groups. */
const DEFAULT_MAX_RANKS = 8;
/** The steps between saves without --save-every. */
const DEFAULT_SAVE_EVERY = 100;

/**
 * The flags with what --elastic sets of them.
 * @throws {UsageError} for what a job whose ranks change can't have
 */
export function withElastic(flags: Flags): Flags {
  if (!flags.elastic) {
    return flags;
  }
  const { transport, batch, ranks = 0, out, saveEvery, minRanks = 1 } = flags;
  refuse(flags);
  const most = Math.min(batch, Math.max(DEFAULT_MAX_RANKS, flags.maxRanks ?? 0, ranks));
  const gradientGroups = flags.gradientGroups ?? most;
  const maxRanks = flags.maxRanks ?? gradientGroups;
  if (maxRanks > gradientGroups) {
    throw new UsageError(
      `--max-ranks ${maxRanks} of --gradient-groups ${gradientGroups}: a rank without a group has nothing to do. Give at most ${gradientGroups}, or more groups and a larger --batch.`,
    );
  }
  if (minRanks > maxRanks || minRanks > (flags.ranks ?? maxRanks) || ranks > maxRanks) {
    throw new UsageError(
      `--min-ranks ${minRanks}, --ranks ${flags.ranks ?? 'left out'} and --max-ranks ${maxRanks}: expected them in this order. Change one of them.`,
    );
  }
  return {
    ...{ ...flags, minRanks, maxRanks, gradientGroups },
    transport: transport === 'memory' ? 'ws' : transport,
    saveEvery: saveEvery ?? (out === undefined ? undefined : { steps: DEFAULT_SAVE_EVERY }),
  };
}

/** @throws {UsageError} where ranks could not read their parts of the base again */
export function requireBaseFiles(flags: Flags, model: ModelSource): void {
  const hasFiles = model.kind === 'directory' && model.hasWeights;
  if (
    flags.elastic &&
    flags.strategy === 'fsdp' &&
    isHeldByAll(flags, isAdapted(flags)) &&
    !hasFiles
  ) {
    throw new UsageError(
      `--elastic and adapters with --strategy fsdp: where ranks change each reads its new part of the base from files, and --model ${flags.model} has random weights. Give a model with weights, or --strategy ddp.`,
    );
  }
}

function refuse(given: Flags): void {
  const { strategy, transport, task, out, ...flags } = given;
  const isHeld = isHeldByAll(given, isAdapted(given));
  const say = (what: string, why: string) => {
    throw new UsageError(`--elastic and ${what}: ${why}`);
  };
  if (strategy === 'offload' || strategy === 'single') {
    say(`--strategy ${strategy}`, 'it has one rank. Use --strategy ddp or fsdp.');
  }
  if (transport === 'mpi') {
    say('--transport mpi', 'MPI ends all ranks with the first that dies. Leave --transport out.');
  }
  if (!isHeld && out === undefined) {
    say(
      '--strategy fsdp',
      'each rank has a part of the state that nobody else has, so the job goes on from saves, and --out is not given. Give one, or use --strategy ddp or --lora-rank, which need none.',
    );
  }
  if (!isHeld) {
    const named = flags.listen === undefined ? flags.maxRanks && '--max-ranks' : '--listen';
    if (named) {
      say(`${named} with --strategy ${strategy}`, 'nobody joins such a job while it runs.');
    }
    return;
  }
  if (flags.listen !== undefined && /^(0\.0\.0\.0|\[?::\]?)(:\d+)?$/.test(flags.listen)) {
    throw new UsageError(
      `--listen ${flags.listen}: expected the address by which other machines reach this one, which its ranks tell them. Give one that hostname -I shows.`,
    );
  }
  if (transport === 'shm' && flags.listen !== undefined) {
    say(
      '--listen with --transport shm',
      'all ranks are threads of the command, and nobody joins from elsewhere. Leave one of them out.',
    );
  }
  if (task !== 'lm') {
    say(`--task ${task}`, 'its ranks can not change. Leave --elastic out.');
  }
  const others = { timeLimit: '--time-limit', trace: '--trace', check: '--check' } as const;
  for (const [name, typed] of Object.entries(others)) {
    const value = flags[name as keyof typeof others];
    if (value !== undefined && value !== false) {
      say(typed, 'it is for a job whose ranks are the same from its beginning to its end.');
    }
  }
}

/** What --elastic has set, in words; undefined where it has set nothing. */
export function elasticNote(
  given: Flags,
  run: Pick<Flags, 'gradientGroups' | 'saveEvery' | 'products'>,
): string | undefined {
  const { gradientGroups, saveEvery } = run;
  const set = [
    given.gradientGroups === undefined && `--gradient-groups ${gradientGroups}`,
    given.products === 'auto' && '--products wasm',
    given.saveEvery === undefined && saveEvery && `--save-every ${saveEvery.steps}`,
  ].filter((text) => typeof text === 'string');
  return given.elastic && set.length > 0
    ? `--elastic sets ${set.join(', ')}: whoever computes a step comes to the same bits.`
    : undefined;
}

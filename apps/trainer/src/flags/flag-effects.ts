// What flags change in a run. One that changes nothing is told, and refused where the run would not
// be what it promises.

import { formatOf } from '../data/data-source.js';
import { kindOf } from '../device-choice.js';
import { UsageError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { isLanguage } from '../task/task-head.js';
import { numBlocks } from '../task/text-config.js';
import { keyOf } from './flag.js';
import { type AppliesTo, FLAG_NAMES, FLAGS, type Flags } from './train-flags.js';

/** The flags that decide whether others have an effect. */
type Given = Partial<
  Pick<
    Flags,
    'strategy' | 'precision' | 'offloadDir' | 'gradAccum' | 'data' | 'schedule' | 'device'
  > &
    Pick<Flags, 'task' | 'valid' | 'validFraction' | 'evalTask' | 'out' | 'saveEvery' | 'elastic'>
>;

interface Condition {
  /** What a run needs, in words. */
  readonly needs: string;
  readonly holds: (given: Given) => boolean;
  /** Where a run without it is refused: what came instead; undefined where nothing did. */
  readonly refuses?: (given: Given) => string | undefined;
}

const isNotGiven = () => undefined;
const strategyOf = ({ strategy }: Given) => `--strategy ${strategy}`;

const CONDITIONS: Readonly<Record<Exclude<AppliesTo, 'all'>, Condition>> = {
  'cpu device': {
    needs: 'a cpu device',
    holds: ({ device = ['auto'] }) => device.some((choice) => kindOf(choice) === 'cpu'),
  },
  fsdp: { needs: '--strategy fsdp', holds: ({ strategy }) => strategy === 'fsdp' },
  'fsdp in memory': {
    needs: '--strategy fsdp without --offload-dir',
    holds: ({ strategy, offloadDir }) => strategy === 'fsdp' && offloadDir === undefined,
    refuses: (given) =>
      given.offloadDir === undefined
        ? strategyOf(given)
        : `${strategyOf(given)} --offload-dir ${given.offloadDir}`,
  },
  offload: {
    needs: '--strategy offload',
    holds: ({ strategy }) => strategy === 'offload',
    refuses: strategyOf,
  },
  resting: {
    needs: '--strategy offload or fsdp',
    holds: ({ strategy }) => strategy === 'offload' || strategy === 'fsdp',
    refuses: strategyOf,
  },
  'offload directory': {
    needs: '--offload-dir',
    holds: ({ offloadDir }) => offloadDir !== undefined,
    refuses: isNotGiven,
  },
  'reducing in 16 bits': {
    needs: '--precision fp16 or bf16, and --strategy fsdp or ddp',
    holds: ({ precision, strategy }) =>
      precision !== 'fp32' && (strategy === 'fsdp' || strategy === 'ddp'),
  },
  elastic: { needs: '--elastic', holds: ({ elastic = false }) => elastic, refuses: isNotGiven },
  'micro-steps': { needs: '--grad-accum 2 or more', holds: ({ gradAccum = 1 }) => gradAccum > 1 },
  documents: {
    needs: 'documents, a file of JSON lines, Parquet, CSV or TSV',
    holds: ({ data, task = 'lm' }) => task === 'lm' && formatOf(data) !== 'text',
    refuses: ({ data, task = 'lm' }) =>
      task === 'lm' ? `--data ${data ?? '(the novel)'}, all of which counts` : `--task ${task}`,
  },
  embedding: {
    needs: '--task embed',
    holds: ({ task }) => task === 'embed',
    refuses: ({ task }) => `--task ${task}`,
  },
  labelling: {
    needs: '--task classify',
    holds: ({ task }) => task === 'classify',
    refuses: ({ task }) => `--task ${task}`,
  },
  reference: {
    needs: '--task dpo',
    holds: ({ task }) => task === 'dpo',
    refuses: ({ task }) => `--task ${task}`,
  },
  odds: {
    needs: '--task orpo',
    holds: ({ task }) => task === 'orpo',
    refuses: ({ task }) => `--task ${task}`,
  },
  ranking: {
    needs: '--task embed or rerank',
    holds: ({ task }) => task === 'embed' || task === 'rerank',
    refuses: ({ task }) => `--task ${task}`,
  },
  evaluation: {
    needs: '--valid or --valid-fraction',
    holds: ({ valid, validFraction }) => valid !== undefined || validFraction !== undefined,
    refuses: isNotGiven,
  },
  conversations: {
    needs: '--task lm with --valid',
    holds: ({ task = 'lm', valid }) => task === 'lm' && valid !== undefined,
    refuses: ({ task = 'lm', validFraction }) =>
      task !== 'lm'
        ? `--task ${task}`
        : validFraction === undefined
          ? undefined
          : `--valid-fraction ${validFraction}`,
  },
  answers: {
    needs: '--eval-task',
    holds: ({ evalTask }) => evalTask !== undefined,
    refuses: isNotGiven,
  },
  text: {
    needs: '--task lm, dpo or orpo',
    holds: ({ task = 'lm' }) => isLanguage(task),
    refuses: ({ task }) => `--task ${task}`,
  },
  wsd: {
    needs: '--schedule wsd',
    holds: ({ schedule }) => schedule === 'wsd',
    refuses: ({ schedule }) => `--schedule ${schedule}`,
  },
  'falling rate': {
    needs: '--schedule cosine or wsd',
    holds: ({ schedule }) => schedule !== 'constant',
    refuses: ({ schedule }) => `--schedule ${schedule}`,
  },
  out: { needs: '--out', holds: ({ out }) => out !== undefined, refuses: isNotGiven },
  saves: {
    needs: '--save-every',
    holds: ({ saveEvery, elastic = false }) => saveEvery !== undefined || elastic,
    refuses: isNotGiven,
  },
};

/** The most that a flag's number can count, and of what. */
const MOST: Readonly<Partial<Record<keyof Flags, (run: RunConfig) => [most: number, of: string]>>> =
  {
    gradAccum: (run) => [Math.ceil(run.batch / run.ranks), 'rows of a rank'],
    ranks: ({ gradientGroups = Infinity }) => [gradientGroups, 'groups of rows'],
    slices: ({ modelConfig }) => [numBlocks(modelConfig) + 2, 'layers of the model'],
    microBatches: ({ batch, gradAccum }) => [Math.ceil(batch / gradAccum), 'rows of a micro-step'],
    warmup: ({ steps }) => [steps, 'steps of the run, and the rate never gets to --lr'],
  };

/**
 * Refuses a flag without which the run would be another than what it says.
 * @throws {UsageError} for the first flag that is given and has no effect
 */
export function refuseIdle(flags: Partial<Flags>): void {
  const name = FLAG_NAMES.find((flag) => isGiven(flag, flags) && isRefused(flag, flags));
  if (name !== undefined) {
    const { needs, refuses } = conditionOf(name)!;
    const got = refuses!(flags);
    const instead = got === undefined ? 'which is not given' : `got ${got}`;
    const flag = typedOf(name);
    throw new UsageError(
      `${flag} is for ${needs}, ${instead}. Use ${needs}, or leave ${flag} out.`,
    );
  }
}

/** A sentence for each flag that is given and changes nothing, or has more than there is. */
export function idleFlags(flags: Flags, run: RunConfig): string[] {
  return FLAG_NAMES.filter((name) => isGiven(name, flags)).flatMap((name) => {
    // A module's own rows to evaluate on are the run's, though nobody typed them.
    if (isIdle(name, { ...flags, valid: run.valid })) {
      return [`${typedOf(name)} changes nothing without ${conditionOf(name)!.needs}.`];
    }
    const [most, of] = MOST[name]?.(run) ?? [Infinity, ''];
    const given = flags[name] as number;
    return given > most ? [`--${keyOf(name)} ${given} is more than the ${most} ${of}.`] : [];
  });
}

/** Whether a run would be refused with a value of the flag. */
export function isRefused(name: keyof Flags, given: Given): boolean {
  const condition = conditionOf(name);
  return condition?.refuses !== undefined && !condition.holds(given);
}

function isIdle(name: keyof Flags, flags: Partial<Flags>): boolean {
  return isGiven(name, flags) && conditionOf(name)?.holds(flags) === false;
}

/** Whether a flag has another value than the one without it. */
function isGiven(name: keyof Flags, flags: Partial<Flags>): boolean {
  return flags[name] !== undefined && flags[name] !== FLAGS[name].value;
}

function conditionOf(name: keyof Flags): Condition | undefined {
  const { appliesTo } = FLAGS[name];
  return appliesTo === 'all' ? undefined : CONDITIONS[appliesTo];
}

/** The flag as it is typed, such as `--no-sync`. */
function typedOf(name: keyof Flags): string {
  return FLAGS[name].value === true ? `--no-${keyOf(name)}` : `--${keyOf(name)}`;
}

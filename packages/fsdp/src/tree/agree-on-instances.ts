// Checks whether all ranks have wrapped the same modules with the same options. Otherwise a
// difference would go into training unnoticed, or leave ranks waiting for messages that nobody
// sends.

import { compareTexts, type ProcessGroup } from '@shardweave/collectives';
import { FsdpConfigError } from '../errors.js';
import { exchangeCall } from '../ranks/call-identity.js';
import type { TreeInstance } from './tree-instance.js';

const CALL = exchangeCall('initialize', 'options');

/** What one rank tells the others. */
interface Told {
  /**
   * A difference that some of the ranks have found, for those that have not seen it; '' for none.
   */
  readonly difference: string;
  /** For each instance a line per option, after a line with its name. */
  readonly instances: readonly (readonly string[])[];
}

/** What is known of some ranks after they have compared. */
interface Found {
  readonly difference: string;
  /** The numeric classes of these ranks, each once, sorted. */
  readonly classes: readonly string[];
}

/**
 * Compares all instances below `root` over its ranks. An instance with another group is compared
 * over the ranks of that group, because experts may differ from one another. Collective.
 * @returns the numeric classes of the root's ranks, each once; empty on a single rank
 * @throws {FsdpConfigError} on all ranks, naming the first instance and option that differ
 */
export async function agreeOnInstances(root: TreeInstance): Promise<readonly string[]> {
  const instances = root.instances();
  const isAlone = root.options.groups.numRanks === 1;
  const own = isAlone ? [] : [await root.wrapper.device.numericClass()];
  const { difference, classes } = await compareBelow(root, { instances, own });
  throwIfAny(difference);
  const groups = new Set(instances.map(({ processGroup }) => processGroup));
  groups.delete(root.processGroup);
  if (groups.size === 0) {
    return classes;
  }
  let inner = '';
  for (const group of groups) {
    const first = instances.find(({ processGroup }) => processGroup === group)!;
    inner ||= (await compareBelow(first, { instances, own: [] })).difference;
  }
  throwIfAny((await compareOver(root, { difference: inner, instances: [], classes })).difference);
  return classes;
}

/**
 * The lines that ranks compare for one instance. Options that may differ from rank to rank, such as
 * `verbose`, are not among them.
 */
function comparedLines({ units, options }: TreeInstance): string[] {
  const { groups, placement, divide, flattenParameters } = options;
  const { processGroupReduceScatter: reduce, replicateGroup } = groups;
  const compared = {
    shardTrained: options.shardTrained,
    vocabParallel: options.vocabParallel,
    replicas: replicateGroup?.worldSize ?? 1,
    mixedPrecision: options.isMixed,
    computeDType: options.computeDType,
    bufferDType: options.bufferDType,
    fp32ReduceScatter: options.isMixed && options.reduceDType === 'f32',
    forceInputToFp32: options.forceInputToFp32,
    gradientGroups: options.gradientGroups ?? 'none',
    gradientPredivideFactor: divide.predivide,
    'division after the sum': divide.postdivide,
    reshardAfterForward: options.reshardAfterForward,
    disableReshardOnRoot: options.disableReshardOnRoot,
    syncModuleStates: options.syncModuleStates,
    findUnusedParameters: options.findUnusedParameters,
    noBroadcastOptimState: options.noBroadcastOptimState ?? 'not given',
    bucketCapMb: options.isBucketed ? options.bucketCapBytes / 2 ** 20 : 0,
    gatherCapBytes: options.gatherCapBytes,
    processGroupReduceScatter: typeof reduce === 'string' ? reduce : 'a group',
    'what rests in a store': placement?.rests ?? 'nothing',
    resume: placement?.resume ?? false,
    flattenParameters: Array.isArray(flattenParameters) ? 'groups' : flattenParameters,
    'flat parameters': units.map(
      ({ name, layout, values }) => `${name} of ${layout.sizes.join(' + ')} in ${values.form}`,
    ),
  };
  return Object.entries(compared).map(([option, value]) => `${option}: ${value}`);
}

function throwIfAny(difference: string): void {
  if (difference === '') {
    return;
  }
  throw new FsdpConfigError(
    `initialize: expected the same instances and options on all ranks, got ${difference}. Build and wrap the model alike.`,
  );
}

/**
 * Compares all `instances` over the ranks of `of`; of an instance with another group only its
 * presence is compared.
 */
function compareBelow(
  of: TreeInstance,
  {
    instances,
    own,
  }: { readonly instances: readonly TreeInstance[]; readonly own: readonly string[] },
): Promise<Found> {
  const lines = instances.map((instance) =>
    instance.processGroup === of.processGroup
      ? [`instance '${instance.name}'`, ...comparedLines(instance)]
      : ['an instance of another group'],
  );
  return compareOver(of, { difference: '', instances: lines, classes: own });
}

/**
 * Compares over the ranks of the shards first; their finding is then compared over the replicas.
 */
async function compareOver(
  { processGroup, replicateGroup }: TreeInstance,
  told: Told & Found,
): Promise<Found> {
  const found = await compareIn(processGroup, 'rank', told);
  if (replicateGroup === undefined) {
    return found;
  }
  return compareIn(replicateGroup, 'replica', { ...told, ...found });
}

async function compareIn(
  group: ProcessGroup,
  who: string,
  { difference, instances, classes: known }: Told & Found,
): Promise<Found> {
  const told: Told = { difference, instances };
  const texts = [JSON.stringify(told), JSON.stringify(known)];
  const [differing, others] = await compareTexts(group, texts, CALL);
  const all = others?.flatMap((text) => JSON.parse(text) as string[]) ?? known;
  const classes = [...new Set(all)].sort();
  if (differing === undefined) {
    return { difference, classes };
  }
  const tolds = differing.map((text) => JSON.parse(text) as Told);
  const found = tolds.find((answer) => answer.difference !== '');
  return { difference: found?.difference ?? differenceAmong(tolds, who), classes };
}

function differenceAmong(tolds: readonly Told[], who: string): string {
  const [first, ...others] = tolds.map((answer) => answer.instances);
  const isOther = (other: Told['instances']) => JSON.stringify(other) !== JSON.stringify(first);
  const rank = 1 + others.findIndex(isOther);
  return firstDiffering(first!, others[rank - 1]!, { who, rank });
}

/** Describes the first line in which two ranks differ. */
function firstDiffering(
  first: Told['instances'],
  other: Told['instances'],
  { who, rank }: { readonly who: string; readonly rank: number },
): string {
  const at = firstDifference(
    first.map((lines) => lines.join('\n')),
    other.map((lines) => lines.join('\n')),
  );
  const [a, b] = [first[at] ?? [], other[at] ?? []];
  const line = firstDifference(a, b);
  const whose = line === 0 ? '' : `, of ${a[0]}`;
  const none = 'no further instance';
  return `${a[line] ?? none} on ${who} 0 and ${b[line] ?? none} on ${who} ${rank}${whose}`;
}

function firstDifference(first: readonly string[], other: readonly string[]): number {
  const at = first.findIndex((text, i) => text !== other[i]);
  return at < 0 ? first.length : at;
}

// Whether all ranks have wrapped the same, with the same options: what differs would be trained on in
// silence, or leave ranks waiting for messages that none sends.

import type { ProcessGroup } from '@shardweave/collectives';
import { fnv1a } from '@shardweave/dtypes';
import { FsdpConfigError } from '../errors.js';
import type { ResolvedFsdpOptions } from '../resolve-options.js';
import { callIdentity } from './call-identity.js';
import { exchangeText } from './exchange-text.js';
import type { TreeInstance } from './tree-instance.js';

/** The text's length and a hash of it: ranks that agree exchange no more. */
const DIGEST_WORDS = 2;

const CALL = { operation: 'initialize', what: 'options' } as const;

/** What ranks compare. */
interface Told {
  /** The difference among some of the ranks, for those that have not seen it; '' for none. */
  readonly difference: string;
  /** A line an option of each instance, its name first. */
  readonly instances: readonly (readonly string[])[];
}

type LinesOf = (instance: TreeInstance) => readonly string[];

/**
 * Compares all instances below `root` over its ranks, those of another group over the ranks of that
 * group: experts may differ from one another. Collective.
 * @throws {FsdpConfigError} on all ranks, naming the first instance and option that differ
 */
export async function agreeOnInstances(root: TreeInstance, linesOf: LinesOf): Promise<void> {
  const instances = root.instances();
  throwIfAny(await differenceBelow(root, { instances, linesOf }));
  const groups = new Set(instances.map(({ processGroup }) => processGroup));
  groups.delete(root.processGroup);
  if (groups.size === 0) {
    return;
  }
  let difference = '';
  for (const group of groups) {
    const first = instances.find(({ processGroup }) => processGroup === group)!;
    difference ||= await differenceBelow(first, { instances, linesOf });
  }
  throwIfAny(await differenceOver(root, { difference, instances: [] }));
}

/** What ranks compare of one instance. What may be each rank's own, such as `verbose`, is not among it. */
export function comparedLines({ units }: TreeInstance, options: ResolvedFsdpOptions): string[] {
  const { groups, residence, divide, flattenParameters } = options;
  const { processGroupReduceScatter: reduce, replicateGroup } = groups;
  const compared = {
    replicas: replicateGroup?.worldSize ?? 1,
    mixedPrecision: options.isMixed,
    computeDType: options.computeDType,
    bufferDType: options.bufferDType,
    fp32ReduceScatter: options.isMixed && options.reduceDType === 'f32',
    forceInputToFp32: options.forceInputToFp32,
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
    'what rests in a store': residence?.rests ?? 'nothing',
    resume: residence?.resume ?? false,
    flattenParameters: Array.isArray(flattenParameters) ? 'groups' : flattenParameters,
    'flat parameters': units.map(
      ({ name, layout, flat }) => `${name} of ${layout.sizes.join(' + ')} in ${flat.dtype}`,
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

/** The difference over the ranks of `of` in all `instances`; those of other groups count as such alone. */
function differenceBelow(
  of: TreeInstance,
  {
    instances,
    linesOf,
  }: { readonly instances: readonly TreeInstance[]; readonly linesOf: LinesOf },
): Promise<string> {
  const lines = instances.map((each) =>
    each.processGroup === of.processGroup
      ? [`instance '${each.name}'`, ...linesOf(each)]
      : ['an instance of another group'],
  );
  return differenceOver(of, { difference: '', instances: lines });
}

/** Over the ranks of the shards first, whose finding goes along over the replicas. */
async function differenceOver(
  { processGroup, replicateGroup }: TreeInstance,
  { difference, instances }: Told,
): Promise<string> {
  const own = await differenceIn(processGroup, 'rank', { difference, instances });
  if (replicateGroup === undefined) {
    return own;
  }
  return differenceIn(replicateGroup, 'replica', { difference: own, instances });
}

async function differenceIn(group: ProcessGroup, who: string, told: Told): Promise<string> {
  const text = JSON.stringify(told);
  if (group.worldSize === 1 || (await isSame(group, text))) {
    return told.difference;
  }
  const all = (await exchangeText(group, text, CALL)).map((each) => JSON.parse(each) as Told);
  const found = all.find(({ difference }) => difference !== '');
  if (found !== undefined) {
    return found.difference;
  }
  const [first, ...others] = all.map(({ instances }) => instances);
  const isOther = (other: Told['instances']) => JSON.stringify(other) !== JSON.stringify(first);
  const rank = 1 + others.findIndex(isOther);
  return differing(first!, others[rank - 1]!, { who, rank });
}

async function isSame(group: ProcessGroup, text: string): Promise<boolean> {
  const own = Uint32Array.of(text.length, fnv1a(text));
  const all = new Uint32Array(DIGEST_WORDS * group.worldSize);
  await group.allGather(new Uint8Array(own.buffer), new Uint8Array(all.buffer), {
    dtype: 'u32',
    tag: CALL.what,
    identity: callIdentity(CALL.operation, CALL.what),
  });
  return all.every((word, i) => word === own[i % DIGEST_WORDS]);
}

/** The first line that two ranks have differently. */
function differing(
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

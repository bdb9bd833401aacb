// Describes an instance in words, for people to read.

import type { TreeInstance } from './tree/tree-instance.js';

/** One line; with the option `verbose` also the options, and a line for each flat parameter. */
export function describeInstance(instance: TreeInstance): string {
  const { processGroup, units, name, isResharding, tree } = instance;
  const { masterDType, computeDType, isVerbose } = instance.options;
  const numParameters = units.reduce((sum, { parameters }) => sum + parameters.length, 0);
  const dtypes = masterDType === computeDType ? masterDType : `${computeDType} of ${masterDType}`;
  const parts = [
    `rank ${processGroup.rank}/${processGroup.worldSize}`,
    dtypes,
    isResharding ? 'reshards after forward' : 'keeps parameters until backward',
    `${numParameters} parameters in ${units.length} flat`,
  ];
  if ((tree?.numericClasses.length ?? 0) > 1) {
    parts.push(`ranks of ${tree!.numericClasses.length} numeric classes`);
  }
  const line = `FullyShardedDataParallel '${name}' (${parts.join(', ')})`;
  return isVerbose ? [line, ...details(instance)].join('\n') : line;
}

function details(instance: TreeInstance): string[] {
  const { reduceDType, bufferDType, divide, bucketCapBytes, gatherCapBytes } = instance.options;
  const { predivide, postdivide } = divide;
  return [
    `  state ${instance.activity.state}, ${instance.isRoot ? 'root' : 'no root'}, group '${instance.processGroup.id}'`,
    `  gradients in ${reduceDType}, divided by ${predivide} and ${postdivide}, buckets of ${bucketCapBytes} bytes`,
    `  buffers in ${bufferDType}, at most ${gatherCapBytes} bytes gathered ahead`,
    ...instance.units.map(
      ({ name, parameters, layout, full }) =>
        `  '${name}': ${parameters.length} parameters, ${layout.shardLength} elements a rank, ${full.storage.isFilled ? 'present' : 'absent'}`,
    ),
  ];
}

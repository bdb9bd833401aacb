// The check of this package's options.

import { having, optionChecks } from '@shardweave/tensor-core/options';
import { DdpConfigError } from './errors.js';

/** Options that other versions and systems have, each with what to do instead. */
const ADVICE: Readonly<Record<string, string>> = {
  sharedParam:
    'It was removed from apex. Shared parameters are found automatically; delayAllreduce: true reduces everything at the end.',
  gradientAverageSplitFactor: 'It is ignored in apex. Use gradientPredivideFactor.',
  gradientAsBucketView: 'Use retainAllreduceBuffers: true.',
  bucketCapMb: 'Use bucketCapBytes.',
  deviceIds: 'A module has one device, and a process may hold several ranks.',
  outputDevice: 'A module has one device, and a process may hold several ranks.',
  checkReduction:
    'Every backward checks that all buckets were reduced; there is nothing to switch.',
  delayAllReduceNamedParams: 'Use delayAllreduce: true.',
  mesh: 'Use processGroup.',
  deviceMesh: 'Use processGroup.',
  group: 'Use processGroup.',
  mixedPrecision: 'Wrap a model that packParameters(model, { computeDType }) of nn has packed.',
  mpPolicy: 'Wrap a model that packParameters(model, { computeDType }) of nn has packed.',
  computeDType: 'Wrap a model that packParameters(model, { computeDType }) of nn has packed.',
};

/** A process group of any copy of collectives. */
export const GROUP = having(
  'a process group of @shardweave/collectives',
  'allReduce',
  'broadcast',
  'split',
);

export const { checkOptions } = optionChecks(DdpConfigError, ADVICE);

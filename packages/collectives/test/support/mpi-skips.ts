// These cases of the conformance suite can't run under mpirun, for the reason given.

import { STOP_CASE } from '@shardweave/collectives/testing';

export const mpiSkips: Readonly<Record<string, string>> = {
  'a killed rank is named on all others, in pending and later calls':
    'MPI ends the whole job when a rank dies',
  [STOP_CASE]: 'MPI has no signs of life: a stopped rank is noticed by timeoutMs alone',
};

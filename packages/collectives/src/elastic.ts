export { EpochOverError } from './errors.js';
export type { CoordinatorOptions, CoordinatorStatus } from './membership/coordinator.js';
export type { Epoch, EpochMember, Member } from './membership/member.js';
export { MembershipError } from './membership/membership-error.js';
export type { MemberEdge } from './membership/messages.js';
export { MemoryElasticJob, type MemoryElasticOptions } from './transports/memory-elastic.js';

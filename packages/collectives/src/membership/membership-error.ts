import { CodedError } from '@shardweave/dtypes/messages';
import type { Ending } from './member-core.js';

/** What to do about each way in which a member's part in a job ends. */
const REMEDIES: Readonly<Record<Ending['kind'], string>> = {
  fenced: 'It may join again, as a newcomer that copies the state of the others',
  ended: 'Save what is needed, and end',
  alone: 'Save what is needed, and end; the job goes on when it is started again',
  left: 'Join again to be a member',
};

/**
 * A process is no member of an elastic job any more, or can't become one. Its group has ended, and
 * what it computed since the last epoch is of no use to the job.
 */
export class MembershipError extends CodedError {
  readonly code = 'MEMBERSHIP';
  /**
   * 'fenced': the job goes on without this member. 'ended': it has ended for all. 'alone': its
   * coordinator is gone. 'left': this member has left.
   */
  readonly kind: Ending['kind'];
  readonly reason: string;

  /** @param id the member's id; undefined where it never got one */
  constructor(id: number | undefined, { kind, reason }: Ending) {
    const who = id === undefined ? 'a newcomer' : `member ${id}`;
    super(`${who} is ${kind === 'left' ? 'gone' : kind}: ${reason}. ${REMEDIES[kind]}.`);
    this.kind = kind;
    this.reason = reason;
  }
}

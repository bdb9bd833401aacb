// How the ranks of an elastic job have changed, for the terminal, the page and summary.json.

import type { MembersTold } from '../rank/events.js';

/** The counts of an elastic job in summary.json. */
export interface ElasticChanges
  extends Readonly<Record<'changes' | 'came' | 'left' | 'lost', number>> {
  /** The fewest and the most ranks after a change; absent without one. */
  readonly ranks?: readonly [least: number, most: number];
}

export function changesOf(told: readonly MembersTold[]): ElasticChanges {
  const sum = (name: 'came' | 'left' | 'lost') =>
    told.reduce((all, change) => all + change[name], 0);
  const sizes = told.map(({ ranks }) => ranks);
  return {
    ...{ changes: told.length, came: sum('came'), left: sum('left'), lost: sum('lost') },
    ...(sizes.length > 0 && { ranks: [Math.min(...sizes), Math.max(...sizes)] as const }),
  };
}

/** A line such as `2 ranks go on behind step 12: 1 lost (its connection closed)`. */
export function membersText({
  ranks,
  step,
  came,
  left,
  lost,
  reasons,
}: Omit<MembersTold, 'epoch'>): string {
  const parts = [
    came > 0 && `${came} came`,
    left > 0 && `${left} left`,
    lost > 0 && `${lost} lost (${reasons.join('; ')})`,
  ].filter((text) => text !== false);
  const who = ranks === 1 ? '1 rank goes on' : `${ranks} ranks go on`;
  return `${who} behind step ${step}${parts.length > 0 ? `: ${parts.join(', ')}` : ''}`;
}

// The data in a report's page.

import type { PageRecord } from './step-table.js';

export interface PageData {
  readonly runs: readonly {
    readonly name: string;
    readonly records: readonly PageRecord[];
    /** Whether its command was at work when the page was made. */
    readonly isLive?: boolean;
  }[];
}

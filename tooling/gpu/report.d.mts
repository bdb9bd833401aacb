import type { readRows } from '../../bench/figures/rows.mjs';

export function renderReport(report: ReturnType<typeof readRows>): string;

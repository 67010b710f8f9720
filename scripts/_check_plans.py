"""Every plan of tests/plans/plans.yaml, exported and replayed on the embedded store: `scripts/check_plans`."""

import sys

import stagedb
from tests.plans.checking import check, plans, title


def main() -> None:
    failed = 0
    rows = plans()
    with stagedb.connect("embedded") as db:
        for number, plan in enumerate(rows, start=1):
            report = check(db, plan)
            sound = not report.faults and report.replayed
            failed += not sound
            print(f"{number:3} of {len(rows)}  {'ok    ' if sound else 'FAULTS'}  {title(plan)}: {report.summary}")
            for fault in report.faults[:3]:
                print(f"      rank {fault.rank}, node {fault.node}: {fault.rule}: {fault.message}")
    print(f"{len(rows) - failed} of {len(rows)} plans run without a fault")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

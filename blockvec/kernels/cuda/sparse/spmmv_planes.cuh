// The plane sweep: the order in which blocks work through a grid of planes, shared by the product (spmmv_planes.cu) and the kernel that plans
// it (spmmv_planes_plan.cu).
//
// Row number p PLANE + l LINE + i is point i of line l of plane p. A patch is ACROSS points of each of LINES lines; a unit is a patch in
// DEPTH planes, which a block processes one plane per step, after BEFORE steps that only load rows of X. Blocks take the units round robin,
// those of the same planes first, so that neighbouring patches are processed at about the same time and share rows of X in L2.
//
// A row of X that one step loads may be used in that step and the next two; the rows loaded in four steps, the current one included, must fit
// the ring of SLOTS rows. On a full grid a step loads at most AROUND rows, the patch of a plane and the points around it; where entries are
// missing, some are loaded one step later.
//
// Config: ACROSS, LINES.
#pragma once

constexpr int BEFORE = 2;
constexpr int AROUND = (ACROSS + 2) * (LINES + 2);
constexpr int MOST = AROUND + AROUND / 4;  // rows of X loaded per step
constexpr int SLOTS = 4 * AROUND;

struct Step {
    int row, end;  // first row of the patch; first row behind the plane
    int points;  // of a line
    int number;  // among the steps of all units
    int before;  // steps until the unit's first plane

    // Rows of the patch in one of its lines.
    __device__ __forceinline__ int count(int line, int pitch) const {
        return line < LINES ? max(0, min(points, end - row - line * pitch)) : 0;
    }
};

class PlaneSweep {
  public:
    Step step;

    __device__ __forceinline__ PlaneSweep(int n_rows, int line, int plane, int depth, int first, int stride)
        : n_rows(n_rows), line(line), plane(plane), depth(depth), stride(stride), unit(first) {
        planes = ceil_div(n_rows, plane);
        across = ceil_div(line, ACROSS);
        patches = across * ceil_div(ceil_div(plane, line), LINES);
        units = patches * ceil_div(planes, depth);
        enter();
    }

    __device__ __forceinline__ bool goes_on() const { return unit < units; }

    __device__ __forceinline__ void advance() {
        ++step.number;
        if (step.before > 0)
            --step.before;
        else
            step.row += plane, step.end = min(step.end + plane, n_rows);
        if (--left == 0) {
            unit += stride;
            enter();
        }
    }

  private:
    int n_rows, line, plane, depth, stride, unit, units, planes, across, patches, left;

    static __device__ __forceinline__ int ceil_div(int value, int by) { return (value + by - 1) / by; }

    __device__ __forceinline__ void enter() {
        const int patch = unit % patches, first = unit / patches * depth, deep = min(depth, planes - first);
        const int point = patch % across * ACROSS, row = patch / across * LINES;
        step.row = first * plane + row * line + point;
        step.end = min((first + 1) * plane, n_rows);
        step.points = min(ACROSS, line - point);
        step.number = unit / patches * patches * (depth + BEFORE) + patch * (deep + BEFORE);
        step.before = BEFORE;
        left = deep + BEFORE;
    }
};

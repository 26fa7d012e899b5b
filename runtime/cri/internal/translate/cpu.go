package translate

// The kernel's figures for CPU, and how the API's thousandths of a core map to
// them.
const (
	minShares, maxShares = 2, 262144
	sharesPerCore        = 1024

	minQuota = 1_000 // µs, the least the kernel takes
)

// milliToShares turns a CPU request into cgroup shares.
func milliToShares(milli int64) int64 {
	if milli > maxShares*1000/sharesPerCore {
		return maxShares
	}
	return max(milli*sharesPerCore/1000, minShares)
}

// milliToQuota turns a CPU limit into run time in each period; 0 is no limit.
func milliToQuota(milli, period int64) int64 {
	if milli <= 0 {
		return 0
	}
	const most = int64(1) << 40 // thousandths of a core; keeps the product in range
	return max(min(milli, most)*period/1000, minQuota)
}

// sharesToMilli is the least request that gives these shares.
func sharesToMilli(shares int64) int64 {
	if shares <= minShares {
		return 0
	}
	return (shares*1000 + sharesPerCore - 1) / sharesPerCore
}

// quotaToMilli is the least limit that gives this quota.
func quotaToMilli(quota, period int64) int64 {
	return (quota*1000 + period - 1) / period
}
